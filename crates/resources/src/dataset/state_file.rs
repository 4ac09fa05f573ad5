//! Iterator states as variants that can be written to files and sent to other tasks.
//!
//! Metadata is a sequence of values: `i` and a number, `t` for the next tensor, `d` for a dataset, whose
//! graph is the next tensor, `n` for no dataset.

use super::Dataset;
use super::state::{Item, IteratorState};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_model::proto::VariantTensorDataProto;
use ferroflow_model::{tensor_from_proto, tensor_to_proto};
use ferroflow_tensor::{Bytes, DType, Shape, Tensor, Variant};
use std::sync::Arc;

/// The type name of encoded states.
const TYPE_NAME: &str = "ferroflow::IteratorState";

impl IteratorState {
    /// Returns the state as a variant vector. `graph_of` writes the datasets in it. Those that it refuses,
    /// and values without an encoding, such as resources, leave a state that only this process can restore.
    ///
    /// # Errors
    /// Those of [`Tensor::from_variants`], which do not occur here.
    pub fn into_tensor(self, graph_of: impl Fn(&Tensor) -> Result<Vec<u8>>) -> Result<Tensor> {
        let value = match self.encoded(graph_of) {
            Ok(proto) => Variant(Some(Arc::new(proto))),
            Err(_) => Variant(Some(Arc::new(self))),
        };
        Tensor::from_variants(Shape::from([1]), vec![value])
    }

    /// Returns the state that a variant tensor holds. `dataset_of` makes the datasets in it from graphs.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it holds something else; those of `dataset_of`.
    pub fn of(
        t: &Tensor,
        dataset_of: impl Fn(&[u8]) -> Result<Tensor>,
    ) -> Result<Arc<IteratorState>> {
        let [Variant(Some(value))] = t.variants()? else {
            return Err(unreadable());
        };
        match value.downcast_ref::<VariantTensorDataProto>() {
            Some(proto) if proto.type_name == TYPE_NAME => {
                Ok(Arc::new(IteratorState::decoded(proto, dataset_of)?))
            }
            _ => value.clone().downcast().map_err(|_| unreadable()),
        }
    }

    fn encoded(
        &self,
        graph_of: impl Fn(&Tensor) -> Result<Vec<u8>>,
    ) -> Result<VariantTensorDataProto> {
        let (mut metadata, mut tensors) = (Vec::new(), Vec::new());
        for item in &self.0 {
            match item {
                Item::Int(n) => {
                    metadata.push(b'i');
                    metadata.extend(n.to_le_bytes());
                }
                Item::Tensor(t) if t.dtype() != DType::Variant => {
                    metadata.push(b't');
                    tensors.push(tensor_to_proto(t)?);
                }
                Item::Tensor(t) => match t.variants()? {
                    [Variant(None)] => metadata.push(b'n'),
                    [one] if Dataset::of_variant(one).is_some() => {
                        metadata.push(b'd');
                        tensors.push(tensor_to_proto(&Tensor::string(graph_of(t)?))?);
                    }
                    _ => {
                        metadata.push(b't');
                        tensors.push(tensor_to_proto(t)?);
                    }
                },
            }
        }
        Ok(VariantTensorDataProto {
            type_name: TYPE_NAME.into(),
            metadata: metadata.into(),
            tensors,
        })
    }

    fn decoded(
        proto: &VariantTensorDataProto,
        dataset_of: impl Fn(&[u8]) -> Result<Tensor>,
    ) -> Result<IteratorState> {
        let mut tensors = proto
            .tensors
            .iter()
            .map(|t| tensor_from_proto(t, None)?.get());
        let mut metadata = &proto.metadata[..];
        let mut items = Vec::new();
        while let Some((kind, rest)) = metadata.split_first() {
            metadata = rest;
            let item = match kind {
                b'i' => {
                    let (bytes, rest) = metadata.split_first_chunk().ok_or_else(unreadable)?;
                    metadata = rest;
                    Item::Int(i64::from_le_bytes(*bytes))
                }
                b't' => Item::Tensor(tensors.next().ok_or_else(unreadable)??),
                b'd' => {
                    let graph = tensors.next().ok_or_else(unreadable)??;
                    let graph: &Bytes = graph.strings()?.first().ok_or_else(unreadable)?;
                    Item::Tensor(dataset_of(graph)?)
                }
                b'n' => Item::Tensor(Tensor::from_variants(Shape::scalar(), vec![Variant(None)])?),
                _ => return Err(unreadable()),
            };
            items.push(item);
        }
        Ok(IteratorState(items))
    }
}

fn unreadable() -> Status {
    invalid_argument!("DeserializeIteratorOp: Unable to parse the serialized iterator.")
}
