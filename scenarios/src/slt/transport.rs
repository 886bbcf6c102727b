//! What the runner needs of a mesh: an answer to a question, from any agent.

use query_planner::{Plan, Strategy, Value};

use super::deal::Dealer;

/// A way to ask the nodes of a deal.
pub trait Transport {
    /// How many tables lie in column segments.
    fn columnar_tables(&self) -> u64 {
        0
    }

    /// Ask `sql` of an agent chosen at random.
    ///
    /// # Errors
    /// The harness itself fails; a question that is refused or fails is a [`Reply`].
    fn ask(&mut self, dealer: &Dealer, sql: &str) -> anyhow::Result<Reply>;
}

/// What came of a question.
#[derive(Debug)]
pub enum Reply {
    /// An answer from all nodes.
    Answered(Box<Answered>),
    /// Not planned, with the reason.
    Refused(String),
    /// An error that the union is said to raise too.
    SqlError(String),
    /// Planned, but not answered.
    Failed {
        /// Why.
        message: String,
        /// The plan, when the transport knows it.
        plan: Option<Box<Plan>>,
    },
}

/// An answer and what it cost.
#[derive(Debug)]
pub struct Answered {
    /// Its rows.
    pub rows: Vec<Vec<Value>>,
    /// The planner's choice.
    pub strategy: Strategy,
    /// Rows that nodes sent.
    pub rows_shipped: u64,
    /// Bytes that nodes sent, before framing.
    pub bytes_shipped: u64,
    /// The plan, when the transport knows it.
    pub plan: Option<Plan>,
}
