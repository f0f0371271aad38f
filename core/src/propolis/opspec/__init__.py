"""What an op means: the specification that families declare, and what it checks of a call."""
