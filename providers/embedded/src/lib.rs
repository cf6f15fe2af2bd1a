//! Every port in one process over one data directory.
