//! The page at `/`, and the JSON that it polls.

use crate::front::Front;
use ferroflow_model::proto::serving::{GetModelStatusRequest, ModelSpec};
use serde_json::{Value, json};

/// The page.
pub(crate) const PAGE: &str = include_str!("page.html");

impl Front {
    /// The models, their versions and signatures, and the totals by second.
    pub(crate) fn overview(&self) -> Value {
        let models = self
            .manager
            .models()
            .into_iter()
            .map(|(name, is_available)| {
                let spec = ModelSpec {
                    name: name.clone(),
                    ..Default::default()
                };
                let request = GetModelStatusRequest {
                    model_spec: Some(spec.clone()),
                };
                let versions = self
                    .status(&request)
                    .unwrap_or_default()
                    .model_version_status;
                let versions: Vec<Value> = versions
                    .into_iter()
                    .map(|v| {
                        let status = v.status.clone().unwrap_or_default();
                        json!({
                            "version": v.version.to_string(),
                            "state": v.state().as_str_name(),
                            "error": status.error_message,
                        })
                    })
                    .collect();
                json!({
                    "name": name,
                    "available": is_available,
                    "versions": versions,
                    "signatures": self.signatures(&spec),
                })
            });
        let models: Vec<Value> = models.collect();
        json!({
            "models": models,
            "totals": self.recent.all(),
            "memory": crate::metrics::resident_bytes(),
        })
    }

    fn signatures(&self, spec: &ModelSpec) -> Value {
        let Ok(servable) = self.manager.find(Some(spec)) else {
            return json!({});
        };
        let ports = |ports: &[ferroflow_runtime::SignatureTensor]| -> Vec<Value> {
            let ports = ports.iter().map(|p| {
                let dims = p.shape.dims().map(|dims| {
                    let dims = dims.iter().map(|d| d.map_or(-1, |d| d as i64));
                    dims.collect::<Vec<_>>()
                });
                json!({ "key": p.key, "dtype": p.dtype.name(), "shape": dims })
            });
            ports.collect()
        };
        let signatures = servable.signatures().filter_map(|name| {
            let program = servable.program(name)?;
            let described = json!({
                "inputs": ports(&program.ports.inputs),
                "outputs": ports(&program.ports.outputs),
            });
            Some((name.to_string(), described))
        });
        Value::Object(signatures.collect())
    }
}
