//! What can go wrong with gossip.

/// Gossip could not start or be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value of the configuration cannot work.
    #[error("gossip configuration: {0}")]
    Config(String),
    /// The node's facts do not fit into a gossip message.
    #[error("the node's {what} take {bytes} bytes of gossip, the limit is {limit}: use fewer or shorter labels")]
    FactsTooLarge {
        /// Which part of the facts.
        what: String,
        /// Its encoded size.
        bytes: usize,
        /// The most it may have.
        limit: usize,
    },
    /// The generation file could not be read or written.
    #[error("generation file: {0}")]
    Generation(#[from] std::io::Error),
    /// The protocol did not start.
    #[error("gossip did not start: {0}")]
    Start(String),
}
