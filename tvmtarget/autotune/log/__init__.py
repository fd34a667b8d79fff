"""The tuning log: measurements, stored by workload and target, and looked up for builds."""
