"""Operations with nested bodies: which of them a driver can run, and the drivers that do."""
