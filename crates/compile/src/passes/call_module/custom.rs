//! Composites, calls of foreign code, random numbers, transforms and decompositions.

use super::attrs::{flag, float, ints, text};
use super::scope::{Scope, tensor_type, typed};
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_graph::Output;
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_stablehlo::{Attr, Op};
use ferroflow_tensor::{DType, Tensor};

/// TensorFlow's ops for composites and foreign functions of elements.
const FUNCTIONS: &[(&str, &str)] = &[
    ("acos", "Acos"),
    ("acosh", "Acosh"),
    ("asin", "Asin"),
    ("asinh", "Asinh"),
    ("atan", "Atan"),
    ("atanh", "Atanh"),
    ("bessel_i1e", "BesselI1e"),
    ("cosh", "Cosh"),
    ("digamma", "Digamma"),
    ("erf", "Erf"),
    ("erf_inv", "Erfinv"),
    ("erfc", "Erfc"),
    ("lgamma", "Lgamma"),
    ("next_after", "NextAfter"),
    ("polygamma", "Polygamma"),
    ("sinh", "Sinh"),
    ("square", "Square"),
    ("tan", "Tan"),
    ("zeta", "Zeta"),
];

/// Foreign calls that only say where values are.
const ANNOTATIONS: &[&str] = &[
    "Sharding",
    "annotate_device_placement",
    "AllocateBuffer",
    "LayoutConstraint",
    "MoveToDevice",
    "MoveToHost",
];

impl Scope<'_, '_> {
    /// Adds another op; `false` if there is none for it.
    pub(super) fn custom(&mut self, op: &Op) -> Result<bool> {
        match op.name.as_str() {
            "composite" => self.composite(op)?,
            "custom_call" => self.custom_call(op)?,
            "rng_bit_generator" | "dynamic_rng_bit_generator" => self.random_bits(op)?,
            "rng" => self.random_numbers(op)?,
            "fft" => self.transform(op)?,
            "cholesky" => self.cholesky(op)?,
            "triangular_solve" => self.triangular_solve(op)?,
            "batch_norm_inference" => self.batch_norm(op, float(op, "epsilon")?)?,
            "replica_id" | "partition_id" => {
                let zero = self.number(0, DType::Uint32)?;
                self.set(op, zero)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A function that has a name of its own, or what it is made of.
    fn composite(&mut self, op: &Op) -> Result<()> {
        let name = text(op, "name")?;
        let own = name.strip_prefix("chlo.").unwrap_or(name);
        if own == "top_k" {
            let k = match op.attr("composite_attributes") {
                Some(Attr::Dict(list)) => list.iter().find(|(n, _)| n == "k"),
                _ => None,
            };
            if let Some((_, Attr::Int(k))) = k {
                return self.top_k(op, *k);
            }
        }
        if own != name && self.function_of_elements(op, own)? {
            return Ok(());
        }
        self.call(op, text(op, "decomposition")?)
    }

    /// A function of elements by its name; `false` if TensorFlow has none.
    fn function_of_elements(&mut self, op: &Op, name: &str) -> Result<bool> {
        let found = FUNCTIONS.iter().find(|(n, _)| *n == name);
        let (Some((_, function)), [_]) = (found, &op.results[..]) else {
            return Ok(false);
        };
        let dtype = self.ty(self.operand(op, 0)?)?.dtype;
        let mut inputs = Vec::new();
        for id in &op.operands {
            inputs.push(self.full(*id)?);
        }
        let y = self.node(function, typed(dtype), &inputs)?;
        self.set(op, y)?;
        Ok(true)
    }

    /// The largest elements of rows and their places; floats have the order of all floats.
    fn top_k(&mut self, op: &Op, k: i64) -> Result<()> {
        let x = self.operand(op, 0)?;
        let (ty, x) = (self.ty(x)?.clone(), self.full(x)?);
        let (keys, of) = match ty.dtype.is_floating() {
            true => (
                self.total(x, ty.dtype)?,
                super::elementwise::signed(ty.dtype),
            ),
            false => (x, ty.dtype),
        };
        let n = self.constant(Tensor::scalar(k as i32))?;
        let places = self.top_places(keys, of, n)?;
        let values = self.at_places(x, ty.dtype, places, ty.dims.len())?;
        for ((id, t), output) in op.results.iter().zip([values, places]) {
            self.define(*id, tensor_type(t)?.clone(), output);
        }
        Ok(())
    }

    fn custom_call(&mut self, op: &Op) -> Result<()> {
        let target = text(op, "call_target_name")?;
        if ANNOTATIONS.contains(&target) {
            for (i, (id, _)) in op.results.iter().enumerate() {
                let value = self.value(self.operand(op, i)?)?.clone();
                self.values.insert(*id, value);
            }
            return Ok(());
        }
        let config = |name: &str| {
            let configs = ["mhlo.attributes", "tf.backend_config", "backend_config"];
            configs.iter().find_map(|c| match op.attr(c) {
                Some(Attr::Dict(list)) => list.iter().find(|(n, _)| n == name).map(|(_, v)| v),
                _ => None,
            })
        };
        match target {
            "shape_assertion" => self.shape_assertion(op),
            // As JAX writes the op.
            "stablehlo.dynamic_reduce_window" => {
                let name = match op.attr("called_computations") {
                    Some(Attr::Array(list)) => list.first(),
                    _ => None,
                };
                let Some(Attr::Str(name)) = name else {
                    return Err(invalid_argument!("the call has no function"));
                };
                let function = self.translator.function(name)?;
                self.dynamic_reduce_window(op, &function)
            }
            "tf.call_tf_function" => match config("called_index") {
                Some(Attr::Int(i)) => self.host_call(op, usize::try_from(*i).unwrap_or(usize::MAX)),
                _ => Err(invalid_argument!("the call has no called_index")),
            },
            "mhlo.topk" if matches!(config("largest"), Some(Attr::Bool(true)) | None) => {
                match config("k") {
                    Some(Attr::Int(k)) => self.top_k(op, *k),
                    _ => Err(invalid_argument!("the call has no k")),
                }
            }
            _ => {
                let name = target.strip_prefix("mhlo.").unwrap_or(target);
                match self.function_of_elements(op, name)? {
                    true => Ok(()),
                    false => Err(unimplemented_error!(
                        "the program calls {target}, which is not part of StableHLO"
                    )),
                }
            }
        }
    }

    /// A condition on the sizes of open dimensions.
    fn shape_assertion(&mut self, op: &Op) -> Result<()> {
        let condition = self.full(self.operand(op, 0)?)?;
        let message = text(op, "error_message")
            .unwrap_or("a shape assertion failed")
            .to_string();
        let mut data = vec![self.constant(Tensor::from_strings([], vec![message.into()])?)?];
        let mut types = vec![DType::String.into()];
        for id in &op.operands[1..] {
            types.push(self.ty(*id)?.dtype.into());
            data.push(self.full(*id)?);
        }
        data.insert(0, condition);
        let attrs = Attrs::default().with("T", AttrValue::List(types));
        let node = self.node("Assert", attrs, &data)?;
        self.run_always(node.node);
        Ok(())
    }

    fn random_bits(&mut self, op: &Op) -> Result<()> {
        let state = self.operand(op, 0)?;
        let algorithm = match text(op, "rng_algorithm")? {
            "THREE_FRY" => 2,
            // Philox is also the default of CPUs.
            _ => 1,
        };
        let [(_, _), (_, bits)] = &op.results[..] else {
            return Err(invalid_argument!("rng_bit_generator has two results"));
        };
        let bits = tensor_type(bits)?.clone();
        let (of, state) = (self.ty(state)?.dtype, self.full(state)?);
        if of != DType::Uint64 {
            return Err(unimplemented_error!(
                "random bits of a state of {of} are not implemented"
            ));
        }
        let shape = match (super::scope::known_dims(&bits), op.operands.get(1)) {
            (Some(dims), _) => self.shape_constant(&dims)?,
            (None, Some(shape)) => {
                let (dtype, shape) = (self.ty(*shape)?.dtype, self.full(*shape)?);
                self.cast(shape, dtype, DType::Int64)?
            }
            (None, None) => return Err(invalid_argument!("the result has an open shape")),
        };
        let inputs = [self.constant(Tensor::scalar(algorithm))?, state, shape];
        let attrs = Attrs::default()
            .with("dtype", AttrValue::Type(bits.dtype))
            .with("Tshape", AttrValue::Type(DType::Int64));
        let made = self.node("XlaRngBitGenerator", attrs, &inputs)?;
        self.set_all(op, made)
    }

    fn random_numbers(&mut self, op: &Op) -> Result<()> {
        let dtype = self.result(op)?.1.dtype;
        let (a, b) = (
            self.full(self.operand(op, 0)?)?,
            self.full(self.operand(op, 1)?)?,
        );
        let shape = self.full(self.operand(op, 2)?)?;
        let of = self.ty(self.operand(op, 2)?)?.dtype;
        let attrs = Attrs::default()
            .with("T", AttrValue::Type(of))
            .with("dtype", AttrValue::Type(dtype));
        let is_uniform = text(op, "rng_distribution")? == "UNIFORM";
        let (name, scale) = match is_uniform {
            true => ("RandomUniform", self.node("Sub", typed(dtype), &[b, a])?),
            false => ("RandomStandardNormal", b),
        };
        let numbers = self.node(name, attrs, &[shape])?;
        let scaled = self.node("Mul", typed(dtype), &[numbers, scale])?;
        let y = self.node("AddV2", typed(dtype), &[scaled, a])?;
        self.set(op, y)
    }

    fn transform(&mut self, op: &Op) -> Result<()> {
        let kind = text(op, "fft_type")?.to_string();
        let lengths = ints(op, "fft_length")?;
        let suffix = match lengths.len() {
            1 => "",
            2 => "2D",
            3 => "3D",
            n => return Err(unimplemented_error!("transforms of {n} dimensions")),
        };
        let x = self.operand(op, 0)?;
        let (dtype, x) = (self.ty(x)?.dtype, self.full(x)?);
        let to = self.result(op)?.1.dtype;
        let (mut inputs, mut attrs) = (vec![x], Attrs::default());
        if kind == "RFFT" || kind == "IRFFT" {
            let sizes: Vec<i32> = lengths.iter().map(|n| *n as i32).collect();
            inputs.push(self.constant(Tensor::vector(&sizes)?)?);
            let (real, complex) = if kind == "RFFT" {
                (dtype, to)
            } else {
                (to, dtype)
            };
            attrs.set("Treal", AttrValue::Type(real));
            attrs.set("Tcomplex", AttrValue::Type(complex));
        } else {
            attrs.set("Tcomplex", AttrValue::Type(dtype));
        }
        let y = self.node(&format!("{kind}{suffix}"), attrs, &inputs)?;
        self.set(op, y)
    }

    /// The last two dimensions exchanged, and complex numbers conjugate if `adjoint`.
    fn turned(&mut self, x: Output, dtype: DType, rank: usize, adjoint: bool) -> Result<Output> {
        if rank < 2 {
            return Err(invalid_argument!("a matrix has two dimensions at least"));
        }
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(rank - 1, rank - 2);
        let x = self.transpose(x, dtype, &perm)?;
        match adjoint && dtype.is_complex() {
            true => self.node("Conj", typed(dtype), &[x]),
            false => Ok(x),
        }
    }

    fn cholesky(&mut self, op: &Op) -> Result<()> {
        let a = self.operand(op, 0)?;
        let (ty, mut a) = (self.ty(a)?.clone(), self.full(a)?);
        let is_lower = flag(op, "lower");
        let rank = ty.dims.len();
        if !is_lower {
            a = self.turned(a, ty.dtype, rank, true)?;
        }
        let mut y = self.node("Cholesky", typed(ty.dtype), &[a])?;
        if !is_lower {
            y = self.turned(y, ty.dtype, rank, true)?;
        }
        self.set(op, y)
    }

    fn triangular_solve(&mut self, op: &Op) -> Result<()> {
        let (a, b) = (self.operand(op, 0)?, self.operand(op, 1)?);
        let (dtype, rank) = (self.ty(a)?.dtype, self.ty(a)?.dims.len());
        let (mut a, mut b) = (self.full(a)?, self.full(b)?);
        if flag(op, "unit_diagonal") {
            let diagonal = self.node("MatrixDiagPart", typed(dtype), &[a])?;
            let ones = self.node("OnesLike", typed(dtype), &[diagonal])?;
            a = self.node("MatrixSetDiag", typed(dtype), &[a, ones])?;
        }
        let mut is_adjoint = match text(op, "transpose_a")? {
            "ADJOINT" => true,
            "TRANSPOSE" if dtype.is_complex() => {
                a = self.node("Conj", typed(dtype), &[a])?;
                true
            }
            "TRANSPOSE" => true,
            _ => false,
        };
        let is_left = flag(op, "left_side");
        if !is_left {
            // x a = b is aᵀ xᵀ = bᵀ.
            b = self.turned(b, dtype, rank, false)?;
            is_adjoint = !is_adjoint;
            if dtype.is_complex() {
                a = self.node("Conj", typed(dtype), &[a])?;
            }
        }
        let attrs = typed(dtype)
            .with("lower", AttrValue::Bool(flag(op, "lower")))
            .with("adjoint", AttrValue::Bool(is_adjoint));
        let mut x = self.node("MatrixTriangularSolve", attrs, &[a, b])?;
        if !is_left {
            x = self.turned(x, dtype, rank, false)?;
        }
        self.set(op, x)
    }
}
