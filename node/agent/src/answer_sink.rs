//! Where answers are written: the local socket, or a connection of the mesh.

use async_trait::async_trait;
use model::LocalResponse;

/// Where an answer goes.
#[async_trait]
pub(super) trait AnswerSink: Send {
    /// Sends one piece of it.
    async fn send(&mut self, response: LocalResponse) -> anyhow::Result<()>;
}
