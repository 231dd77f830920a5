"""One module per library, one function per workload that the library competes in."""
