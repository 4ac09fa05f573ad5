//! Ops run one by one: `ferroflow.ops`.

use crate::error::{error, invalid};
use crate::input::Convert;
use crate::numpy::dtype_of;
use crate::output::{PyTensor, Shared, array};
use crate::source::pool;
use bytes::Bytes;
use ferroflow_base::{Code, Status};
use ferroflow_opdef::{ArgDef, ArgType, AttrDef, AttrType, AttrValue, Attrs, OpDef};
use ferroflow_runtime::eager::{Eager, TensorHandle};
use ferroflow_runtime::{DType, PartialShape, Tensor, keeps_inputs, registry};
use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use smallvec::SmallVec;
use std::sync::{Arc, OnceLock};

fn eager() -> &'static Eager {
    static EAGER: OnceLock<Eager> = OnceLock::new();
    EAGER.get_or_init(|| match pool(0) {
        Ok(pool) => Eager::on(pool),
        Err(_) => Eager::new(0),
    })
}

/// An op of TensorFlow, called with arrays; attrs are keyword arguments.
///
/// >>> import ferroflow
/// >>> ferroflow.ops.Sum([[1, 2], [3, 4]], 1, keep_dims=True)
/// array([[3],
///        [7]], dtype=int32)
#[pyclass(module = "ferroflow", frozen, weakref)]
pub struct Op {
    def: Arc<OpDef>,
    /// Whether a variable, a queue or another handle may keep the inputs.
    keeps_inputs: bool,
    inputs: Vec<Py<PyString>>,
    /// The class of several results.
    results: OnceLock<Py<PyAny>>,
}

/// Values of inputs, and the attrs that follow from them.
struct Call<'a> {
    op: &'a Op,
    given: Attrs,
    inferred: Attrs,
    tensors: SmallVec<[TensorHandle; 4]>,
}

impl Op {
    fn named(name: &str) -> PyResult<Op> {
        let missing = || PyAttributeError::new_err(format!("no op '{name}' is registered"));
        let def = registry().def(name).map_err(error)?.ok_or_else(missing)?;
        let keeps_all = def.outputs.iter().any(|arg| !is_plain(arg));
        Python::attach(|py| {
            Ok(Op {
                keeps_inputs: keeps_all || keeps_inputs(name),
                inputs: def
                    .inputs
                    .iter()
                    .map(|i| PyString::intern(py, i.name()).unbind())
                    .collect(),
                results: OnceLock::new(),
                def,
            })
        })
    }

    fn arguments<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<(SmallVec<[Bound<'py, PyAny>; 4]>, Attrs)> {
        let name = &self.def.name;
        let mut values: SmallVec<[Bound<'py, PyAny>; 4]> = args.iter().collect();
        if values.len() > self.inputs.len() {
            return Err(PyTypeError::new_err(format!(
                "{name} takes {} inputs, but got {}",
                self.inputs.len(),
                values.len()
            )));
        }
        let mut n_used = 0;
        for key in &self.inputs[values.len()..] {
            let value = kwargs
                .map(|k| k.get_item(key.bind(py)))
                .transpose()?
                .flatten();
            let Some(value) = value else {
                let key = key.bind(py);
                return Err(PyTypeError::new_err(format!(
                    "{name} misses its input '{key}'"
                )));
            };
            n_used += 1;
            values.push(value);
        }
        let mut attrs = Attrs::default();
        let Some(kwargs) = kwargs.filter(|k| k.len() > n_used) else {
            return Ok((values, attrs));
        };
        for (key, value) in kwargs.iter() {
            let key: String = key.extract()?;
            if let Some(def) = self.def.attr(&key) {
                if !value.is_none() || def.ty == AttrType::Shape {
                    attrs.set(key, attr(def, &value)?);
                }
                continue;
            }
            let at = self.def.inputs.iter().position(|i| i.name() == key);
            if key != "name" && at.is_none_or(|at| at < args.len()) {
                return Err(PyTypeError::new_err(format!(
                    "{name} got an unexpected keyword argument '{key}'"
                )));
            }
        }
        Ok((values, attrs))
    }

    fn results<'py>(
        &self,
        py: Python<'py>,
        call_attrs: &Attrs,
        tensors: Vec<Tensor>,
        shared: &Shared,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut values = tensors.into_iter().map(|t| array(py, t, shared));
        let outputs = &self.def.outputs;
        match &outputs[..] {
            [] => return Ok(py.None().into_bound(py)),
            [ArgDef::Single { .. }] => {
                let missing = || crate::error::broken("the op has no result");
                return values.next().ok_or_else(missing)?;
            }
            [_] => return Ok(PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)?.into_any()),
            _ => {}
        }
        let mut fields = Vec::with_capacity(outputs.len());
        for output in outputs {
            let n = output.dtypes(call_attrs).map_err(error)?.len();
            let part = values.by_ref().take(n).collect::<PyResult<Vec<_>>>()?;
            fields.push(match (output, part.into_iter()) {
                (ArgDef::Single { .. }, mut part) => {
                    part.next().unwrap_or_else(|| py.None().into_bound(py))
                }
                (_, part) => PyList::new(py, part)?.into_any(),
            });
        }
        let class = match self.results.get() {
            Some(class) => class,
            None => {
                let names: Vec<&str> = outputs.iter().map(ArgDef::name).collect();
                let make = py.import("ferroflow._types")?.getattr("results")?;
                let made = make.call1((&*self.def.name, names))?.unbind();
                self.results.get_or_init(|| made)
            }
        };
        class.bind(py).call1(PyTuple::new(py, fields)?)
    }
}

fn is_plain(arg: &ArgDef) -> bool {
    let fixed = match arg {
        ArgDef::Single { ty, .. } | ArgDef::Repeated { ty, .. } => ty,
        ArgDef::List { .. } => return true,
    };
    !matches!(fixed, ArgType::Fixed(DType::Resource | DType::Variant)) && !arg.is_ref()
}

impl Call<'_> {
    /// The dtype of an argument, as far as it is known before its value is.
    fn dtype(&self, ty: &ArgType) -> Option<DType> {
        match ty {
            ArgType::Fixed(dtype) => Some(*dtype),
            ArgType::Attr(name) => {
                let known = self
                    .given
                    .dtype(name)
                    .or_else(|_| self.inferred.dtype(name));
                known.ok()
            }
        }
    }

    fn convert(&self, value: &Bound<'_, PyAny>, dtype: Option<DType>) -> PyResult<Tensor> {
        let share = !self.op.keeps_inputs;
        Convert {
            dtype,
            share,
            cast: false,
        }
        .tensor(value)
    }

    /// Converts the value of a type attr's argument and remembers the attr.
    fn typed(&mut self, value: &Bound<'_, PyAny>, ty: &ArgType) -> PyResult<Tensor> {
        let mut tensor = self.convert(value, self.dtype(ty))?;
        let ArgType::Attr(name) = ty else {
            return Ok(tensor);
        };
        if self.dtype(ty).is_none() {
            let def = self.op.def.attr(name);
            let allowed = def.map_or(&[][..], |def| &def.allowed);
            let own = AttrValue::Type(tensor.dtype());
            let fits = allowed.is_empty() || allowed.iter().any(|a| a.same_value(&own));
            if let (false, Some(AttrValue::Type(default))) =
                (fits, def.and_then(|d| d.default.as_ref()))
                && !has_dtype(value)?
            {
                tensor = self.convert(value, Some(*default))?;
            }
            self.inferred.set(name.clone(), tensor.dtype().into());
        }
        Ok(tensor)
    }

    fn input(&mut self, arg: &ArgDef, value: &Bound<'_, PyAny>) -> PyResult<Vec<Tensor>> {
        let items = || -> PyResult<Vec<Bound<'_, PyAny>>> {
            let items = value.try_iter().map_err(|_| {
                let (op, input) = (&self.op.def.name, arg.name());
                PyTypeError::new_err(format!("input '{input}' of {op} must be a list of tensors"))
            })?;
            items.collect()
        };
        match arg {
            ArgDef::Single { ty, .. } => Ok(vec![self.typed(value, ty)?]),
            ArgDef::Repeated { ty, number, .. } => {
                let items = items()?;
                let n = AttrValue::Int(items.len() as i64);
                // A value with a dtype decides that of the others.
                for item in &items {
                    if has_dtype(item)? {
                        self.typed(item, ty)?;
                        break;
                    }
                }
                self.inferred.set(number.clone(), n);
                items.iter().map(|item| self.typed(item, ty)).collect()
            }
            ArgDef::List { types, .. } => {
                let wanted = self.given.dtypes(types).unwrap_or_default();
                let items = items()?;
                let tensors = items.iter().enumerate();
                let tensors = tensors.map(|(i, v)| self.convert(v, wanted.get(i).copied()));
                let tensors = tensors.collect::<PyResult<Vec<_>>>()?;
                let dtypes = tensors.iter().map(|t| t.dtype().into()).collect();
                self.inferred.set(types.clone(), AttrValue::List(dtypes));
                Ok(tensors)
            }
        }
    }

    /// Converts all inputs, those first whose values have a dtype.
    fn inputs(&mut self, values: &[Bound<'_, PyAny>]) -> PyResult<()> {
        let op = self.op;
        let mut done: SmallVec<[Option<Vec<Tensor>>; 4]> = SmallVec::new();
        done.resize(values.len(), None);
        for only_typed in [true, false] {
            for ((arg, value), slot) in op.def.inputs.iter().zip(values).zip(&mut done) {
                if slot.is_none() && (!only_typed || has_dtype(value)?) {
                    *slot = Some(self.input(arg, value)?);
                }
            }
        }
        let tensors = done.into_iter().flatten().flatten();
        self.tensors = tensors.map(TensorHandle::from).collect();
        Ok(())
    }
}

/// Whether a value has a dtype of its own, unlike Python's numbers and lists.
fn has_dtype(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    value.hasattr(pyo3::intern!(value.py(), "dtype"))
}

fn attr(def: &AttrDef, value: &Bound<'_, PyAny>) -> PyResult<AttrValue> {
    if !def.is_list {
        return one_attr(def, value);
    }
    let items = value
        .try_iter()
        .map_err(|_| PyTypeError::new_err(format!("Expected list for attr {}", def.name)))?;
    let items = items.map(|item| one_attr(def, &item?));
    Ok(AttrValue::List(items.collect::<PyResult<_>>()?))
}

fn one_attr(def: &AttrDef, value: &Bound<'_, PyAny>) -> PyResult<AttrValue> {
    let wrong = |kind: &str| {
        let repr = value.repr().map_or(String::new(), |r| r.to_string());
        let message = format!("Expected {kind} for argument '{}' not {repr}.", def.name);
        PyTypeError::new_err(message)
    };
    Ok(match def.ty {
        AttrType::Str => match (value.cast::<PyString>(), value.cast::<PyBytes>()) {
            (Ok(text), _) => AttrValue::str(text.to_str()?),
            (_, Ok(bytes)) => AttrValue::Str(Bytes::copy_from_slice(bytes.as_bytes())),
            _ => return Err(wrong("string")),
        },
        AttrType::Int => AttrValue::Int(value.extract().map_err(|_| wrong("int"))?),
        AttrType::Float => {
            AttrValue::Float(value.extract::<f64>().map_err(|_| wrong("float"))? as f32)
        }
        AttrType::Bool => AttrValue::Bool(value.extract().map_err(|_| wrong("bool"))?),
        AttrType::Type => AttrValue::Type(dtype_of(value)?),
        AttrType::Shape => {
            if value.is_none() {
                return Ok(AttrValue::Shape(PartialShape::unknown()));
            }
            let dims: Vec<Option<i64>> = value.extract().map_err(|_| wrong("shape"))?;
            let dims: Vec<i64> = dims.into_iter().map(|d| d.unwrap_or(-1)).collect();
            AttrValue::Shape(PartialShape::from_tf(Some(&dims)).map_err(error)?)
        }
        AttrType::Tensor => {
            let convert = Convert {
                dtype: None,
                share: false,
                cast: false,
            };
            AttrValue::Tensor(convert.tensor(value)?.into())
        }
        AttrType::Func => {
            return Err(error(Status::new(
                Code::Unimplemented,
                format!(
                    "attr '{}' is a function; put the op into a graph and run a Session",
                    def.name
                ),
            )));
        }
    })
}

#[pymethods]
impl Op {
    #[new]
    fn new(name: &str) -> PyResult<Op> {
        Op::named(name)
    }

    /// The op's name.
    #[getter]
    fn __name__(&self) -> &str {
        &self.def.name
    }

    /// The signature of the op: its inputs, outputs and attrs.
    #[getter]
    fn definition(&self) -> String {
        self.def.to_string()
    }

    /// Runs the op.
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (values, given) = self.arguments(py, args, kwargs)?;
        let mut call = Call {
            op: self,
            given,
            inferred: Attrs::default(),
            tensors: SmallVec::new(),
        };
        call.inputs(&values)?;
        let Call {
            given,
            mut inferred,
            tensors,
            ..
        } = call;
        let (mut shared, mut held) = (Shared::default(), Vec::new());
        if !self.keeps_inputs {
            for tensor in tensors.iter().filter_map(TensorHandle::available) {
                if tensor.byte_len() > 4096 {
                    shared.add(tensor);
                    held.push(tensor.clone());
                }
            }
        }
        let ran = py.detach(|| {
            let outputs = eager().op(&self.def.name, &given).execute(tensors)?;
            let outputs = outputs.into_iter();
            let get = |handle: TensorHandle| match handle.is_ready() {
                true => handle.into_ready().ok_or_else(no_value),
                false => handle.get(),
            };
            outputs.map(get).collect::<Result<Vec<Tensor>, Status>>()
        });
        let tensors = ran.map_err(|e| error(e.at_node(&self.def.name, &self.def.name)))?;
        if self.def.outputs.len() > 1 {
            for (name, value) in given.iter() {
                inferred.set(name.clone(), value.clone());
            }
            self.def.complete_attrs(&mut inferred).map_err(error)?;
        }
        let results = self.results(py, &inferred, tensors, &shared);
        drop(held);
        results
    }

    fn __repr__(&self) -> String {
        format!("<ferroflow op {}>", self.def)
    }
}

#[cold]
fn no_value() -> Status {
    Status::new(Code::Internal, "the op returned no value")
}

/// Returns the names of all ops.
#[pyfunction]
pub fn op_names() -> Vec<&'static str> {
    let ops = registry().sorted();
    ops.into_iter().map(|op| op.op.name).collect()
}

/// Returns an array as a tensor that ops take without converting it again.
///
/// >>> import ferroflow
/// >>> ferroflow.tensor([1, 2], "int64")
/// <ferroflow.Tensor int64[2]>
#[pyfunction]
#[pyo3(signature = (value, dtype = None))]
pub fn tensor(value: &Bound<'_, PyAny>, dtype: Option<&Bound<'_, PyAny>>) -> PyResult<PyTensor> {
    let convert = Convert {
        dtype: dtype.map(dtype_of).transpose()?,
        share: false,
        cast: false,
    };
    let tensor = convert.tensor(value)?;
    if let Some(wanted) = convert.dtype
        && wanted != tensor.dtype()
    {
        let own = tensor.dtype();
        return Err(invalid(format!("expected dtype {wanted}, got {own}")));
    }
    Ok(PyTensor(tensor))
}
