//! Every port in memory, in virtual time, with faults from a seed.
