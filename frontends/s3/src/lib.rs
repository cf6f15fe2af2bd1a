//! The S3 protocol in front of the memory service.
