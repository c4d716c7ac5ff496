//! The channel.
