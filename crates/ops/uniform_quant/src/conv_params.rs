//! Attrs and sizes of uniform quantized convolutions (TensorFlow:
//! `core/util/quantization/uniform_quant_ops_params.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::shape_of;
use ferroflow_opdef::Attrs;
use ferroflow_tensor::Shape;
use prost::Message;

/// The message in the attr `dimension_numbers`.
#[derive(Clone, PartialEq, Message)]
struct NumbersMessage {
    #[prost(int64, tag = "1")]
    input_batch: i64,
    #[prost(int64, tag = "2")]
    input_feature: i64,
    #[prost(int64, repeated, tag = "3")]
    input_spatial: Vec<i64>,
    #[prost(int64, tag = "4")]
    kernel_input_feature: i64,
    #[prost(int64, tag = "5")]
    kernel_output_feature: i64,
    #[prost(int64, repeated, tag = "6")]
    kernel_spatial: Vec<i64>,
    #[prost(int64, tag = "7")]
    output_batch: i64,
    #[prost(int64, tag = "8")]
    output_feature: i64,
    #[prost(int64, repeated, tag = "9")]
    output_spatial: Vec<i64>,
}

/// Which dimension is what.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    input_batch: usize,
    input_feature: usize,
    input_spatial: Vec<usize>,
    kernel_input_feature: usize,
    pub kernel_output_feature: usize,
    kernel_spatial: Vec<usize>,
    output_batch: usize,
    pub output_feature: usize,
    output_spatial: Vec<usize>,
}

impl Numbers {
    fn of(message: &NumbersMessage, rank: usize) -> Result<Self> {
        let one = |value: i64| match usize::try_from(value) {
            Ok(d) if d < rank => Ok(d),
            _ => Err(invalid_argument!(
                "Each dimension number must be in region [0, rank). Given rank {rank} and \
                 dimension number value {value}"
            )),
        };
        let all = |values: &[i64]| {
            if values.len() != rank - 2 {
                return Err(invalid_argument!(
                    "Spatial dimensions size must be rank - 2. Given rank {rank} and spatial \
                     dimensions size {}",
                    values.len()
                ));
            }
            values.iter().map(|v| one(*v)).collect::<Result<Vec<_>>>()
        };
        let numbers = Numbers {
            input_batch: one(message.input_batch)?,
            input_feature: one(message.input_feature)?,
            input_spatial: all(&message.input_spatial)?,
            kernel_input_feature: one(message.kernel_input_feature)?,
            kernel_output_feature: one(message.kernel_output_feature)?,
            kernel_spatial: all(&message.kernel_spatial)?,
            output_batch: one(message.output_batch)?,
            output_feature: one(message.output_feature)?,
            output_spatial: all(&message.output_spatial)?,
        };
        for order in [numbers.lhs(), numbers.rhs(), numbers.out()] {
            let mut seen = vec![false; rank];
            for d in order {
                if std::mem::replace(&mut seen[d], true) {
                    return Err(invalid_argument!("dimension number {d} is given twice"));
                }
            }
        }
        Ok(numbers)
    }

    /// Batch, feature, space.
    fn first(rank: usize) -> Self {
        let space = || (2..rank).collect();
        Numbers {
            input_batch: 0,
            input_feature: 1,
            input_spatial: space(),
            kernel_input_feature: 1,
            kernel_output_feature: 0,
            kernel_spatial: space(),
            output_batch: 0,
            output_feature: 1,
            output_spatial: space(),
        }
    }

    fn lhs(&self) -> Vec<usize> {
        order(self.input_batch, self.input_feature, &self.input_spatial)
    }

    fn rhs(&self) -> Vec<usize> {
        let (output, input) = (self.kernel_output_feature, self.kernel_input_feature);
        order(output, input, &self.kernel_spatial)
    }

    fn out(&self) -> Vec<usize> {
        order(self.output_batch, self.output_feature, &self.output_spatial)
    }
}

fn order(first: usize, second: usize, space: &[usize]) -> Vec<usize> {
    [first, second]
        .into_iter()
        .chain(space.iter().copied())
        .collect()
}

/// The attrs of a convolution.
#[derive(Clone)]
pub(crate) struct ConvAttrs {
    strides: Vec<i64>,
    lhs_dilation: Vec<i64>,
    rhs_dilation: Vec<i64>,
    batch_groups: i64,
    feature_groups: i64,
    padding: String,
    explicit: Vec<i64>,
    numbers: NumbersMessage,
}

/// The sizes along the spatial dimensions.
pub(crate) struct Spaces {
    pub lhs: Vec<usize>,
    pub rhs: Vec<usize>,
    pub padded: Vec<usize>,
    pub out: Vec<usize>,
    pub before: Vec<usize>,
    pub window: Vec<usize>,
    pub lhs_dilation: Vec<usize>,
    pub rhs_dilation: Vec<usize>,
}

/// A convolution of inputs of known shapes.
pub(crate) struct Convolution {
    pub numbers: Numbers,
    pub batch: usize,
    pub feature: usize,
    pub rhs_feature: usize,
    pub out_batch: usize,
    pub out_feature: usize,
    pub batch_groups: usize,
    pub feature_groups: usize,
    lhs: Vec<i64>,
    rhs: Vec<i64>,
    strides: Vec<i64>,
    lhs_dilation: Vec<i64>,
    rhs_dilation: Vec<i64>,
    /// Before and after each dimension.
    padding: Vec<[i64; 2]>,
}

fn joined(values: &[i64]) -> String {
    let values: Vec<String> = values.iter().map(i64::to_string).collect();
    values.join(", ")
}

impl ConvAttrs {
    pub(crate) fn of(attrs: &Attrs) -> Result<Self> {
        let list = |name: &str| -> Result<Vec<i64>> {
            let all = attrs.ints(name)?;
            match all.iter().find(|v| i32::try_from(**v).is_err()) {
                Some(v) => Err(invalid_argument!(
                    "Attr {name} has value {v} out of range for an int32"
                )),
                None => Ok(all),
            }
        };
        let (padding, explicit) = (attrs.str("padding")?.to_string(), list("explicit_padding")?);
        if !matches!(&padding[..], "EXPLICIT" | "SAME" | "VALID") {
            return Err(invalid_argument!(
                "padding Attr must be one of [EXPLICIT | SAME | VALID], but given: {padding}"
            ));
        }
        if padding != "EXPLICIT" && !explicit.is_empty() {
            return Err(invalid_argument!(
                "If padding Attr is not 'EXPLICIT', explicit_padding Attr must be empty. Given \
                 padding {padding} and explicit_padding of size {}",
                explicit.len()
            ));
        }
        let numbers = NumbersMessage::decode(&attrs.bytes("dimension_numbers")?[..])
            .map_err(|_| invalid_argument!("Error parsing convolution dimension numbers."))?;
        Ok(ConvAttrs {
            strides: list("window_strides")?,
            lhs_dilation: list("lhs_dilation")?,
            rhs_dilation: list("rhs_dilation")?,
            batch_groups: attrs.int("batch_group_count")?,
            feature_groups: attrs.int("feature_group_count")?,
            padding,
            explicit,
            numbers,
        })
    }

    /// Returns the convolution of tensors of these shapes.
    pub(crate) fn apply(&self, lhs: &Shape, rhs: &Shape) -> Result<Convolution> {
        let rank = lhs.rank();
        if rank != rhs.rank() {
            return Err(invalid_argument!(
                "lhs and rhs must have same dims. Given lhs and rhs of shapes: {lhs}{rhs}"
            ));
        }
        if rank <= 2 {
            return Err(invalid_argument!(
                "lhs and rhs shape dims must be at least 3. Given: {rank}"
            ));
        }
        let filled = |values: &[i64], name: &str| match values {
            [] => Ok(vec![1; rank - 2]),
            values if values.len() != rank - 2 => {
                Err(invalid_argument!("Size of {name} Attr must be dims - 2."))
            }
            values if values.iter().any(|v| *v < 1) => Err(invalid_argument!(
                "All elements of {name} must be >= 1. Given {}",
                joined(values)
            )),
            values => Ok(values.to_vec()),
        };
        let strides = filled(&self.strides, "window_strides")?;
        let lhs_dilation = filled(&self.lhs_dilation, "lhs_dilation")?;
        let rhs_dilation = filled(&self.rhs_dilation, "rhs_dilation")?;
        let numbers = match self.numbers.input_spatial.is_empty() {
            true => Numbers::first(rank),
            false => Numbers::of(&self.numbers, rank)?,
        };
        self.check_features(&numbers, lhs, rhs)?;
        let dims = |shape: &Shape, of: &[usize]| of.iter().map(|d| shape[*d] as i64).collect();
        let out_feature = rhs[numbers.kernel_output_feature];
        let mut conv = Convolution {
            batch: lhs[numbers.input_batch],
            feature: lhs[numbers.input_feature],
            rhs_feature: rhs[numbers.kernel_input_feature],
            out_batch: lhs[numbers.input_batch] / self.batch_groups as usize,
            out_feature,
            batch_groups: self.batch_groups as usize,
            feature_groups: self.feature_groups as usize,
            lhs: dims(lhs, &numbers.input_spatial),
            rhs: dims(rhs, &numbers.kernel_spatial),
            numbers,
            strides,
            lhs_dilation,
            rhs_dilation,
            padding: Vec::new(),
        };
        conv.padding = self.padding(&conv, rank)?;
        Ok(conv)
    }

    fn check_features(&self, numbers: &Numbers, lhs: &Shape, rhs: &Shape) -> Result<()> {
        let (groups, batch_groups) = (self.feature_groups, self.batch_groups);
        if groups <= 0 {
            return Err(invalid_argument!(
                "feature_group_count must be a positive integer, given: {groups}"
            ));
        }
        let features = lhs[numbers.input_feature] as i64;
        if features % groups != 0 {
            return Err(invalid_argument!(
                "feature_group_count must divide lhs feature dimension size, but {groups} does \
                 not divide {features}"
            ));
        }
        let inputs = rhs[numbers.kernel_input_feature] as i64;
        if features.checked_rem(inputs) != Some(0) {
            return Err(invalid_argument!(
                "rhs input feature dimension must divide lhs feature dimension size, but {inputs} \
                 does not divide {features}"
            ));
        }
        if features / groups != inputs {
            return Err(invalid_argument!(
                "lhs feature dimension size divided by feature_group_count must equal the rhs \
                 input feature dimension size, but {features} / {groups} != {inputs}"
            ));
        }
        let outputs = rhs[numbers.kernel_output_feature] as i64;
        if outputs % groups != 0 {
            return Err(invalid_argument!(
                "rhs output dimension size must be a multiple of feature_group_count, but \
                 {outputs} is not a multiple of {groups}"
            ));
        }
        if batch_groups <= 0 {
            return Err(invalid_argument!(
                "batch_group_count Attr must be a positive integer. Given: {batch_groups}"
            ));
        }
        let batches = lhs[numbers.input_batch] as i64;
        if batches % batch_groups != 0 {
            return Err(invalid_argument!(
                "batch_group_count must divide lhs batch dimension size, but {batch_groups} does \
                 not divide {batches}"
            ));
        }
        if outputs % batch_groups != 0 {
            return Err(invalid_argument!(
                "rhs output dimension size must be a multiple of batch_group_count, but {outputs} \
                 is not a multiple of {batch_groups}"
            ));
        }
        Ok(())
    }

    fn padding(&self, conv: &Convolution, rank: usize) -> Result<Vec<[i64; 2]>> {
        if self.padding == "VALID" {
            return Ok(vec![[0; 2]; rank - 2]);
        }
        if self.padding == "EXPLICIT" {
            if self.explicit.len() != 2 * (rank - 2) {
                return Err(invalid_argument!(
                    "Size of explicit_padding Attr must be 2 * (rank - 2). Given rank {rank} and \
                     explicit_padding of size {}",
                    self.explicit.len()
                ));
            }
            if self.explicit.iter().any(|v| *v < 0) {
                return Err(invalid_argument!(
                    "All explicit_padding elems must be >= 0, Given {}",
                    joined(&self.explicit)
                ));
            }
            return Ok(self
                .explicit
                .chunks_exact(2)
                .map(|p| [p[0], p[1]])
                .collect());
        }
        let pads = (0..rank - 2).map(|i| {
            let (lhs, rhs, stride) = (conv.lhs_dilated(i)?, conv.rhs_dilated(i)?, conv.strides[i]);
            let out = lhs.checked_add(stride - 1).ok_or_else(too_large)? / stride;
            let total = (out - 1)
                .checked_mul(stride)
                .and_then(|n| n.checked_add(rhs));
            let total = (total.ok_or_else(too_large)? - lhs).max(0);
            Ok([total / 2, total - total / 2])
        });
        pads.collect()
    }
}

fn too_large() -> ferroflow_base::Status {
    invalid_argument!("the dilated size is too large")
}

/// Returns a size with gaps between the elements.
fn dilated(size: i64, dilation: i64) -> Result<i64> {
    if size == 0 {
        return Ok(0);
    }
    let gaps = (dilation - 1).checked_mul(size - 1);
    gaps.and_then(|n| n.checked_add(size)).ok_or_else(too_large)
}

impl Convolution {
    fn lhs_dilated(&self, i: usize) -> Result<i64> {
        dilated(self.lhs[i], self.lhs_dilation[i])
    }

    fn rhs_dilated(&self, i: usize) -> Result<i64> {
        dilated(self.rhs[i], self.rhs_dilation[i])
    }

    fn padded(&self, i: usize) -> Result<i64> {
        let [before, after] = self.padding[i];
        let size = self.lhs_dilated(i)?.checked_add(before);
        size.and_then(|n| n.checked_add(after))
            .ok_or_else(too_large)
    }

    fn out(&self, i: usize) -> Result<i64> {
        let (stride, rhs) = (self.strides[i], self.rhs_dilated(i)?);
        let steps = self
            .padded(i)?
            .checked_sub(rhs)
            .and_then(|n| n.checked_add(stride));
        Ok(steps.ok_or_else(too_large)? / stride)
    }

    /// Returns the shape of the output.
    pub(crate) fn output_shape(&self) -> Result<Shape> {
        let mut dims = vec![0; self.lhs.len() + 2];
        dims[self.numbers.output_batch] = self.out_batch;
        dims[self.numbers.output_feature] = self.out_feature;
        for (i, d) in self.numbers.output_spatial.iter().enumerate() {
            let n = self.out(i)?;
            dims[*d] = usize::try_from(n).map_err(|_| {
                invalid_argument!("Expected shape dimensions to be non-negative, got {n}")
            })?;
        }
        shape_of(dims)
    }

    /// Returns the sizes along the spatial dimensions.
    pub(crate) fn spaces(&self) -> Result<Spaces> {
        let each = |of: &dyn Fn(usize) -> Result<i64>| {
            let sizes = (0..self.lhs.len()).map(|i| {
                let n = of(i)?;
                usize::try_from(n).map_err(|_| too_large())
            });
            sizes.collect::<Result<Vec<usize>>>()
        };
        Ok(Spaces {
            lhs: each(&|i| Ok(self.lhs[i]))?,
            rhs: each(&|i| Ok(self.rhs[i]))?,
            padded: each(&|i| self.padded(i))?,
            out: each(&|i| self.out(i))?,
            before: each(&|i| Ok(self.padding[i][0]))?,
            window: each(&|i| Ok(self.strides[i]))?,
            lhs_dilation: each(&|i| Ok(self.lhs_dilation[i]))?,
            rhs_dilation: each(&|i| Ok(self.rhs_dilation[i]))?,
        })
    }

    /// Returns batch, feature and space of the left side.
    pub(crate) fn lhs_order(&self) -> Vec<usize> {
        self.numbers.lhs()
    }

    /// Returns output feature, input feature and space of the right side.
    pub(crate) fn rhs_order(&self) -> Vec<usize> {
        self.numbers.rhs()
    }

    /// Returns batch, feature and space of the output.
    pub(crate) fn out_order(&self) -> Vec<usize> {
        self.numbers.out()
    }
}
