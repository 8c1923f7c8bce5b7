"""What polyq is measured with: programs, limits of the machine, and the table of both."""
