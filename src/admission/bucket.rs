//! The global token bucket.
