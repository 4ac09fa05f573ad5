//! Checkpoints in TensorFlow's V1 format (TensorFlow: `core/util/tensor_slice_reader.cc`): a table
//! of tensor slices, and one entry that lists them. Several such files may form one checkpoint.

use crate::atomic_file::write_file;
use crate::files;
use crate::proto::{
    SavedSlice, SavedSliceMeta, SavedTensorSliceMeta, SavedTensorSlices, TensorProto, VersionDef,
};
use crate::sstable;
use crate::tensor_proto::{shape_from_proto, shape_to_proto, tensor_from_proto};
use crate::tensor_slice::{Bounds, TensorSlice, copy_box};
use ferroflow_base::{Result, data_loss, invalid_argument, not_found, unimplemented_error};
use ferroflow_tensor::{Complex, DType, Shape, Tensor, f16};
use prost::Message;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

/// A slice of a tensor to save.
pub struct SavedPart<'a> {
    /// The name of the tensor.
    pub name: String,
    /// The shape of the whole tensor.
    pub whole: Shape,
    /// The part of the tensor.
    pub slice: TensorSlice,
    /// Its values.
    pub value: &'a Tensor,
}

/// Writes a checkpoint in the V1 format.
///
/// ```
/// use ferroflow_model::{SavedPart, SliceReader, TensorSlice, write_slices};
/// use ferroflow_tensor::Tensor;
/// let path = std::env::temp_dir().join(format!("ferroflow-v1-{}", std::process::id()));
/// let value = Tensor::vector(&[1f32, 2.0])?;
/// let whole = value.shape().clone();
/// let part = SavedPart { name: "w".into(), slice: TensorSlice::all(&whole), whole, value: &value };
/// write_slices(&path, &[part])?;
/// let reader = SliceReader::open(&[path.clone()])?;
/// assert_eq!(reader.read("w", None)?.slice::<f32>()?, [1.0, 2.0]);
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), ferroflow_base::Status>(())
/// ```
///
/// # Errors
/// INVALID_ARGUMENT if parts of a tensor disagree on shape or dtype; a file system error if the
/// file cannot be written.
pub fn write_slices(path: &Path, parts: &[SavedPart]) -> Result<()> {
    let mut metas: BTreeMap<&str, SavedSliceMeta> = BTreeMap::new();
    let mut order: Vec<&str> = Vec::new();
    let mut table: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for part in parts {
        let (name, dtype) = (part.name.as_str(), part.value.dtype());
        let shape = Some(shape_to_proto(&(&part.whole).into()));
        let meta = metas.entry(name).or_insert_with(|| {
            order.push(name);
            SavedSliceMeta {
                name: name.to_string(),
                shape: shape.clone(),
                r#type: dtype as i32,
                slice: Vec::new(),
            }
        });
        if meta.shape != shape {
            return Err(invalid_argument!(
                "Mismatching shapes: the tensor {name} was added before, with another shape than {}",
                part.whole
            ));
        }
        if meta.r#type != dtype as i32 {
            return Err(invalid_argument!(
                "Mismatching types: the tensor {name} was added before, with another type than \
                 {dtype}"
            ));
        }
        let Entry::Vacant(entry) = table.entry(part.slice.key(name)) else {
            continue;
        };
        meta.slice.push(part.slice.to_proto());
        let saved = SavedTensorSlices {
            meta: None,
            data: Some(SavedSlice {
                name: name.to_string(),
                slice: Some(part.slice.to_proto()),
                data: Some(listed(part.value)?),
            }),
        };
        entry.insert(saved.encode_to_vec());
    }
    let meta = SavedTensorSliceMeta {
        tensor: order.iter().filter_map(|n| metas.remove(n)).collect(),
        versions: Some(VersionDef {
            producer: 1,
            ..Default::default()
        }),
    };
    let all = SavedTensorSlices {
        meta: Some(meta),
        data: None,
    };
    table.insert(Vec::new(), all.encode_to_vec());
    write_file(path, &sstable::write(&table))
}

/// Returns the values as the typed lists of this format.
fn listed(tensor: &Tensor) -> Result<TensorProto> {
    fn ints<T: ferroflow_tensor::Element + Into<i32>>(t: &Tensor) -> Result<Vec<i32>> {
        Ok(t.slice::<T>()?.iter().map(|v| (*v).into()).collect())
    }
    let mut proto = TensorProto::default();
    match tensor.dtype() {
        DType::Float => proto.float_val = tensor.slice::<f32>()?.to_vec(),
        DType::Double => proto.double_val = tensor.slice::<f64>()?.to_vec(),
        DType::Int64 => proto.int64_val = tensor.slice::<i64>()?.to_vec(),
        DType::Bool => proto.bool_val = tensor.slice::<bool>()?.to_vec(),
        DType::Int32 => proto.int_val = ints::<i32>(tensor)?,
        DType::Int16 => proto.int_val = ints::<i16>(tensor)?,
        DType::Int8 => proto.int_val = ints::<i8>(tensor)?,
        DType::Uint8 => proto.int_val = ints::<u8>(tensor)?,
        DType::Qint8 => return listed(&tensor.bitcast(DType::Int8)?),
        DType::Quint8 => return listed(&tensor.bitcast(DType::Uint8)?),
        DType::Qint32 => return listed(&tensor.bitcast(DType::Int32)?),
        DType::Uint16 => proto.int_val = ints::<u16>(tensor)?,
        DType::Half => {
            let bits = tensor.slice::<f16>()?.iter().map(|v| v.to_bits().into());
            proto.half_val = bits.collect();
        }
        DType::Complex64 => {
            let all = tensor.slice::<Complex<f32>>()?.iter();
            proto.scomplex_val = all.flat_map(|v| [v.re, v.im]).collect();
        }
        DType::Complex128 => {
            let all = tensor.slice::<Complex<f64>>()?.iter();
            proto.dcomplex_val = all.flat_map(|v| [v.re, v.im]).collect();
        }
        DType::String => proto.string_val = tensor.strings()?.to_vec(),
        dtype => {
            return Err(unimplemented_error!(
                "Saving data type {dtype} not yet supported"
            ));
        }
    }
    Ok(proto)
}

/// A tensor of a checkpoint.
struct Stored {
    dtype: DType,
    shape: Shape,
    /// The parts, each with the index of its file.
    parts: Vec<(usize, TensorSlice)>,
}

/// A checkpoint in the V1 format, opened for reading.
pub struct SliceReader {
    paths: Vec<PathBuf>,
    tables: Vec<BTreeMap<Vec<u8>, Vec<u8>>>,
    tensors: BTreeMap<String, Stored>,
}

impl SliceReader {
    /// Opens a checkpoint of these files.
    ///
    /// # Errors
    /// DATA_LOSS if a file cannot be opened or is damaged, or the files disagree.
    pub fn open(paths: &[PathBuf]) -> Result<SliceReader> {
        let mut this = SliceReader {
            paths: paths.to_vec(),
            tables: Vec::new(),
            tensors: BTreeMap::new(),
        };
        for (i, path) in paths.iter().enumerate() {
            if files::is_dir(path) {
                return Err(data_loss!(
                    "Unable to open table file {0}: FAILED_PRECONDITION: {0}; Is a directory: perhaps \
                     your file is in a different file format and you need to use a different restore \
                     operator?",
                    path.display()
                ));
            }
            let file = files::map(path)?;
            let table = sstable::read(file.as_ref()).map_err(|e| {
                data_loss!(
                    "Unable to open table file {}: {e}: perhaps your file is in a different file \
                     format and you need to use a different restore operator?",
                    path.display()
                )
            })?;
            this.enter(i, &table)
                .map_err(|e| e.note(format!("in {}", path.display())))?;
            this.tables.push(table);
        }
        Ok(this)
    }

    fn enter(&mut self, file: usize, table: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<()> {
        let all = table.get(&b""[..]);
        let all =
            all.ok_or_else(|| data_loss!("Could not find the meta data of the checkpoint"))?;
        let all = SavedTensorSlices::decode(&all[..])
            .map_err(|e| data_loss!("the checkpoint's meta data is damaged: {e}"))?;
        for meta in all.meta.unwrap_or_default().tensor {
            let dtype = DType::from_number(meta.r#type);
            let dtype = dtype.ok_or_else(|| data_loss!("tensor {} has no dtype", meta.name))?;
            let shape = shape_from_proto(&meta.shape.unwrap_or_default())?.to_full();
            let shape = shape.ok_or_else(|| data_loss!("tensor {} has no shape", meta.name))?;
            let stored = self.tensors.entry(meta.name.clone());
            let stored = stored.or_insert_with(|| Stored {
                dtype,
                shape: shape.clone(),
                parts: Vec::new(),
            });
            if (stored.dtype, &stored.shape) != (dtype, &shape) {
                return Err(data_loss!(
                    "the files of the checkpoint disagree on tensor {}",
                    meta.name
                ));
            }
            let parts = meta.slice.iter().map(TensorSlice::from_proto);
            stored.parts.extend(parts.map(|slice| (file, slice)));
        }
        Ok(())
    }

    /// Returns the names of the tensors, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns the dtype and shape of a tensor, if there is one of this name.
    pub fn dtype_and_shape(&self, name: &str) -> Option<(DType, Shape)> {
        let stored = self.tensors.get(name)?;
        Some((stored.dtype, stored.shape.clone()))
    }

    /// Reads a tensor, or a part of it.
    ///
    /// # Errors
    /// NOT_FOUND if there is no tensor of this name; INVALID_ARGUMENT if the checkpoint lacks a
    /// part of it; DATA_LOSS if the data is damaged.
    pub fn read(&self, name: &str, slice: Option<&TensorSlice>) -> Result<Tensor> {
        let stored = self.tensors.get(name).ok_or_else(|| {
            let names: Vec<String> = self.paths.iter().map(|p| p.display().to_string()).collect();
            not_found!(
                "Tensor name \"{name}\" not found in checkpoint files {}",
                names.join(", ")
            )
        })?;
        let wanted = match slice {
            Some(slice) => slice.bounds(&stored.shape)?,
            None => Bounds::of(&stored.shape),
        };
        let mut out: Option<Tensor> = None;
        let (mut n_found, mut seen) = (0usize, Vec::new());
        for (file, slice) in &stored.parts {
            let bounds = slice.bounds(&stored.shape)?;
            let common = bounds.intersect(&wanted);
            let key = slice.key(name);
            let Some(common) = common.filter(|_| !seen.contains(&key)) else {
                continue;
            };
            let value = self.part(*file, &key, stored.dtype, &bounds);
            let value = value.map_err(|e| e.note(format!("for tensor '{name}'")))?;
            seen.push(key);
            n_found = n_found.saturating_add(common.num_elements());
            let whole: Shape = wanted.size.iter().copied().collect();
            let out = match &mut out {
                Some(out) => out,
                none => none.insert(Tensor::zeros(stored.dtype, whole)?),
            };
            copy_box(&value, &bounds, out, &wanted, &common)?;
        }
        match out {
            Some(out) if n_found == wanted.num_elements() => Ok(out),
            None if wanted.num_elements() == 0 => {
                let whole: Shape = wanted.size.iter().copied().collect();
                Tensor::zeros(stored.dtype, whole)
            }
            _ => Err(invalid_argument!(
                "tensor {name}: the checkpoint does not have all of the requested slice"
            )),
        }
    }

    fn part(&self, file: usize, key: &[u8], dtype: DType, bounds: &Bounds) -> Result<Tensor> {
        let saved = self.tables.get(file).and_then(|t| t.get(key));
        let saved = saved.ok_or_else(|| data_loss!("a slice is not in the checkpoint"))?;
        let saved = SavedTensorSlices::decode(&saved[..])
            .map_err(|e| data_loss!("a slice is damaged: {e}"))?;
        let mut data = saved.data.and_then(|d| d.data).unwrap_or_default();
        let shape: Shape = bounds.size.iter().copied().collect();
        let counts = [
            data.float_val.len(),
            data.double_val.len(),
            data.int_val.len(),
            data.int64_val.len(),
            data.bool_val.len(),
            data.half_val.len(),
            data.scomplex_val.len() / 2,
            data.dcomplex_val.len() / 2,
            data.string_val.len(),
            data.uint32_val.len(),
            data.uint64_val.len(),
        ];
        // A shape is only trusted as far as there is data.
        if data.tensor_content.is_empty() && !counts.contains(&shape.num_elements()) {
            return Err(data_loss!(
                "a slice's number of values does not match its shape {shape}"
            ));
        }
        data.dtype = dtype as i32;
        data.tensor_shape = Some(shape_to_proto(&(&shape).into()));
        tensor_from_proto(&data, None)?.get()
    }
}
