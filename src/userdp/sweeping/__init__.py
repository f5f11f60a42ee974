"""Many runs of one grid, and the choice of one of them at a claim that covers the choosing."""
