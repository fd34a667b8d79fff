"""What code generators take: the protocol, and the strategies of the kinds that are shipped."""
