//! Health, metrics and the console over HTTP.
