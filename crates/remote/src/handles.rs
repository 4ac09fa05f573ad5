//! [`HandleTable`]: resources of this task whose handles other tasks have.

use crate::master_session::lock;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_model::proto::{TensorProto, VariantTensorDataProto};
use ferroflow_model::{set_handle_device, shape_to_proto, tensor_from_proto, tensor_to_proto};
use ferroflow_runtime::{ANONYMOUS, decode_variant, encode_variant};
use ferroflow_tensor::{DType, ResourceHandle, Shape, Tensor, Variant};
use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

type Value = dyn Any + Send + Sync;

/// Resources by container and name. An anonymous one has a name of its own on the wire, and none is kept
/// alive by its handles elsewhere, as in TensorFlow.
#[derive(Default)]
pub(crate) struct HandleTable(Mutex<Known>);

#[derive(Default)]
struct Known {
    values: HashMap<(String, String), Weak<Value>>,
    /// The names of anonymous resources, by address.
    names: HashMap<usize, String>,
    n_named: u64,
    /// Resources that are gone are forgotten when the table has this size.
    limit: usize,
}

impl Known {
    /// The name of a resource on the wire.
    fn name(&mut self, handle: &ResourceHandle, value: &Arc<Value>) -> String {
        let container = handle.container.to_string();
        let address = Arc::as_ptr(value).cast::<()>() as usize;
        let mut name = handle.name.to_string();
        if name == ANONYMOUS {
            let is_same = |name: &String| {
                let known = self.values.get(&(container.clone(), name.clone()));
                known
                    .and_then(Weak::upgrade)
                    .is_some_and(|known| Arc::ptr_eq(&known, value))
            };
            let known = self.names.get(&address).filter(|name| is_same(name));
            name = known.cloned().unwrap_or_else(|| {
                self.n_named += 1;
                format!("Resource-{}-at-{address:#x}", self.n_named)
            });
            self.names.insert(address, name.clone());
        }
        let key = (container, name.clone());
        self.values.insert(key, Arc::downgrade(value));
        if self.values.len() > self.limit {
            self.values.retain(|_, value| value.strong_count() > 0);
            let values = &self.values;
            self.names
                .retain(|_, name| values.keys().any(|(_, known)| known == name));
            self.limit = self.values.len().max(512) * 2;
        }
        name
    }
}

impl HandleTable {
    /// Encodes a tensor for another task. Handles of resources here name `device` as theirs.
    ///
    /// # Errors
    /// As [`tensor_to_proto`].
    pub(crate) fn encode(&self, tensor: &Tensor, device: &str) -> Result<TensorProto> {
        if tensor.dtype() == DType::Variant {
            return self.encode_variants(tensor, device);
        }
        let mut proto = tensor_to_proto(tensor)?;
        if tensor.dtype() == DType::Resource {
            let mut known = lock(&self.0);
            let handles = tensor.resources()?.iter();
            for (handle, sent) in handles.zip(&mut proto.resource_handle_val) {
                if let Some(value) = &handle.value {
                    sent.name = known.name(handle, value);
                }
            }
            set_handle_device(&mut proto, device);
        }
        Ok(proto)
    }

    /// Decodes a tensor of another task. Handles of resources that were sent from here refer to them.
    ///
    /// # Errors
    /// As [`tensor_from_proto`]; INVALID_ARGUMENT for a variant that only its task understands.
    pub(crate) fn decode(&self, proto: &TensorProto) -> Result<Tensor> {
        let tensor = tensor_from_proto(proto, None)?.get()?;
        match tensor.dtype() {
            DType::Resource => {}
            DType::Variant => return self.decode_variants(&tensor),
            _ => return Ok(tensor),
        }
        let known = lock(&self.0);
        let mut handles = tensor.resources()?.to_vec();
        for handle in &mut handles {
            let key = (handle.container.to_string(), handle.name.to_string());
            handle.value = known.values.get(&key).and_then(Weak::upgrade);
        }
        Tensor::from_resources(tensor.shape().clone(), handles)
    }

    fn encode_variants(&self, tensor: &Tensor, device: &str) -> Result<TensorProto> {
        let encode = |value: &Variant| {
            let encoded = encode_variant(value, &mut |t| self.encode(t, device))?;
            match encoded {
                Some(encoded) => Ok(encoded),
                None => {
                    // A number, or a value that is encoded already.
                    let scalar = Tensor::from_variants(Shape::scalar(), vec![value.clone()])?;
                    let mut proto = tensor_to_proto(&scalar)?;
                    Ok(proto.variant_val.pop().unwrap_or_default())
                }
            }
        };
        let values = tensor.variants()?.iter().map(encode);
        Ok(TensorProto {
            dtype: DType::Variant as i32,
            tensor_shape: Some(shape_to_proto(&tensor.shape().into())),
            variant_val: values.collect::<Result<_>>()?,
            ..Default::default()
        })
    }

    fn decode_variants(&self, tensor: &Tensor) -> Result<Tensor> {
        let decode = |value: &Variant| {
            let encoded = value.0.as_ref().and_then(|v| v.downcast_ref());
            let Some(encoded): Option<&VariantTensorDataProto> = encoded else {
                return Ok(value.clone());
            };
            let decoded = decode_variant(encoded, &mut |t| self.decode(t))?;
            decoded.ok_or_else(|| {
                // Such as a dataset.
                invalid_argument!(
                    "Unable to decode a variant of type {}: it cannot leave its task",
                    encoded.type_name
                )
            })
        };
        let values = tensor.variants()?.iter().map(decode);
        Tensor::from_variants(tensor.shape().clone(), values.collect::<Result<_>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(name: &str, value: &Arc<Value>) -> Result<Tensor> {
        let handle = ResourceHandle {
            container: "localhost".into(),
            name: name.into(),
            value: Some(value.clone()),
            origin: None,
        };
        Tensor::from_resources(Shape::scalar(), vec![handle])
    }

    #[test]
    fn handles_return_to_their_resources() -> Result<()> {
        let table = HandleTable::default();
        let resources: [Arc<Value>; 3] = [Arc::new(1), Arc::new(2), Arc::new(3)];
        let names = [ANONYMOUS, ANONYMOUS, "v"];
        let mut sent = Vec::new();
        for (name, resource) in names.iter().zip(&resources) {
            let proto = table.encode(&handle(name, resource)?, "/device:CPU:0")?;
            assert_eq!(proto.resource_handle_val[0].device, "/device:CPU:0");
            // Sent again, it has the same name.
            assert_eq!(
                proto,
                table.encode(&handle(name, resource)?, "/device:CPU:0")?
            );
            sent.push(proto);
        }
        assert_ne!(sent[0], sent[1]);
        assert_eq!(sent[2].resource_handle_val[0].name, "v");
        for (proto, resource) in sent.iter().zip(&resources) {
            let back = table.decode(proto)?;
            let value = back.resources()?[0].value.clone();
            assert!(value.is_some_and(|value| Arc::ptr_eq(&value, resource)));
        }
        drop(resources);
        let gone = table.decode(&sent[0])?;
        assert!(gone.resources()?[0].value.is_none());
        Ok(())
    }
}
