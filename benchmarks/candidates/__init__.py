"""One module per library, with one function for each workload that the library takes part in."""
