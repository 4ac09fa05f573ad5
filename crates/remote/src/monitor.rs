//! Monitoring: `/healthz` and `/metrics`.

use crate::master::Master;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::{Router, routing::get};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Duration;

/// The metrics of a server.
pub(crate) struct Metrics {
    registry: Registry,
    steps: Counter,
    errors: Counter,
    latency: Histogram,
    running: Gauge,
    memory: Gauge,
    rendezvous: Gauge,
    pub(crate) sessions: Gauge,
    /// Requests that wait for a thread.
    pub(crate) queued: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("ferroflow");
        let (steps, errors) = (Counter::default(), Counter::default());
        let [running, memory, sessions, queued, rendezvous] = [(); 5].map(|()| Gauge::default());
        let latency = Histogram::new(exponential_buckets(10e-6, 4.0, 12));
        registry.register("steps", "Steps that were run", steps.clone());
        registry.register("step_errors", "Steps that failed", errors.clone());
        registry.register(
            "step_seconds",
            "Time that a step took, without the transfer of its tensors",
            latency.clone(),
        );
        registry.register("steps_running", "Steps in progress", running.clone());
        registry.register("sessions", "Open sessions", sessions.clone());
        registry.register(
            "requests_queued",
            "Requests that wait for a thread",
            queued.clone(),
        );
        registry.register(
            "rendezvous",
            "Steps of several tasks that were not cleaned up",
            rendezvous.clone(),
        );
        registry.register(
            "resident_memory_bytes",
            "Memory that the process holds",
            memory.clone(),
        );
        Metrics {
            registry,
            steps,
            errors,
            latency,
            running,
            memory,
            rendezvous,
            sessions,
            queued,
        }
    }
}

impl Metrics {
    /// Counts a step that ended.
    pub(crate) fn step(&self, took: Duration) {
        self.steps.inc();
        self.latency.observe(took.as_secs_f64());
    }

    /// Counts a step that failed, in the engine or before.
    pub(crate) fn failed(&self) {
        self.errors.inc();
    }
}

/// The pages of the monitoring port.
pub(crate) fn router(master: Arc<Master>) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/metrics", get(metrics))
        .with_state(master)
}

async fn metrics(State(master): State<Arc<Master>>) -> impl IntoResponse {
    let metrics = &master.metrics;
    metrics.running.set(master.num_running() as i64);
    metrics
        .rendezvous
        .set(master.task().rendezvous.len() as i64);
    metrics.memory.set(resident_bytes() as i64);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &metrics.registry);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, kind)], text)
}

/// Resident memory of this process, bytes; 0 if unknown.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_whitespace().nth(1).and_then(|p| p.parse().ok());
    pages.unwrap_or(0u64) * 4096
}
