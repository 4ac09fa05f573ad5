//! The coordination service, as the client of a context uses it.

use super::EagerCluster;
use crate::coordination::Agent;
use ferroflow_base::{Result, Status, failed_precondition};
use std::sync::Arc;
use std::time::Duration;

impl EagerCluster {
    fn agent(&self) -> Result<Arc<Agent>> {
        self.shared.check()?;
        let agent = self.shared.task.coordination.agent();
        agent.map_err(|_| failed_precondition!("Coordination service agent is not enabled."))
    }

    /// Sets a value that all tasks may ask for.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the cluster has no coordination service; ALREADY_EXISTS; those of the leader.
    pub fn insert_key_value(&self, key: &str, value: &str) -> Result<()> {
        let agent = self.agent()?;
        self.block_on(agent.insert(key, value))
    }

    /// Returns a value; waits until a task has set it.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the cluster has no coordination service; DEADLINE_EXCEEDED; those of the leader.
    pub fn key_value(&self, key: &str, timeout: Option<Duration>) -> Result<Vec<u8>> {
        let agent = self.agent()?;
        self.block_on(agent.get(key, timeout))
    }

    /// Deletes a value, or all below a directory.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the cluster has no coordination service; those of the leader.
    pub fn delete_key_value(&self, key: &str) -> Result<()> {
        let agent = self.agent()?;
        self.block_on(agent.delete(key))
    }

    /// Waits until all tasks have come to the barrier.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the cluster has no coordination service; DEADLINE_EXCEEDED; those of the leader.
    pub fn wait_at_barrier(&self, barrier: &str, timeout: Duration) -> Result<()> {
        let agent = self.agent()?;
        self.block_on(agent.wait_at_barrier(barrier, timeout))
    }

    /// Tells all tasks that this one has failed.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the cluster has no coordination service; those of the leader.
    pub fn report_error(&self, error: &Status) -> Result<()> {
        let agent = self.agent()?;
        self.block_on(agent.report_error(error))
    }

    fn block_on<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        ferroflow_rpc::block_on(self.shared.task.peers.runtime(), call)
    }
}
