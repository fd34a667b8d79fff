"""What machine this is, and why it is not another."""
