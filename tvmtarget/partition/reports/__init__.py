"""Reports on plans: summaries, explanations, differences, what-if questions, and pictures."""
