//! ParseSequenceExample and related ops: tensors from serialized `tf.SequenceExample` messages
//! (TensorFlow: `core/util/example_proto_fast_parsing.cc`, `core/kernels/example_parsing_ops.cc`).

use crate::example_records::{Key, Records};
use crate::sequence_features::{Context, List, found, merged};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{Attrs, Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{Bytes, DType, PartialShape, Shape, Tensor};
use std::borrow::Cow;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "ParseSequenceExample",
        "serialized: string, debug_name: string, context_dense_defaults: list(Tcontext_dense) \
         -> context_sparse_indices: Ncontext_sparse*int64, context_sparse_values: \
         list(context_sparse_types), context_sparse_shapes: Ncontext_sparse*int64, \
         context_dense_values: list(Tcontext_dense), feature_list_sparse_indices: \
         Nfeature_list_sparse*int64, feature_list_sparse_values: \
         list(feature_list_sparse_types), feature_list_sparse_shapes: \
         Nfeature_list_sparse*int64, feature_list_dense_values: \
         list(feature_list_dense_types), feature_list_dense_lengths: \
         Nfeature_list_dense*int64 | feature_list_dense_missing_assumed_empty: list(string) \
         >= 0; context_sparse_keys: list(string) >= 0; context_dense_keys: list(string) >= 0; \
         feature_list_sparse_keys: list(string) >= 0; feature_list_dense_keys: list(string) \
         >= 0; Ncontext_sparse: int >= 0 = 0; Ncontext_dense: int >= 0 = 0; \
         Nfeature_list_sparse: int >= 0 = 0; Nfeature_list_dense: int >= 0 = 0; \
         context_sparse_types: list(type) >= 0 {float,int64,string} = []; Tcontext_dense: \
         list(type) >= 0 {float,int64,string} = []; feature_list_dense_types: list(type) >= 0 \
         {float,int64,string} = []; context_dense_shapes: list(shape) >= 0 = []; \
         feature_list_sparse_types: list(type) >= 0 {float,int64,string} = []; \
         feature_list_dense_shapes: list(shape) >= 0 = []",
    )
    .shape(|ctx| shape(ctx, Form::V1))
    .cost(Cost::Expensive)
    .kernel(|b| build(b, Form::V1)),
    Op::new(
        "ParseSequenceExampleV2",
        "serialized: string, debug_name: string, context_sparse_keys: string, \
         context_dense_keys: string, context_ragged_keys: string, feature_list_sparse_keys: \
         string, feature_list_dense_keys: string, feature_list_ragged_keys: string, \
         feature_list_dense_missing_assumed_empty: bool, context_dense_defaults: \
         list(Tcontext_dense) -> context_sparse_indices: Ncontext_sparse*int64, \
         context_sparse_values: list(context_sparse_types), context_sparse_shapes: \
         Ncontext_sparse*int64, context_dense_values: list(Tcontext_dense), \
         context_ragged_values: list(context_ragged_value_types), context_ragged_row_splits: \
         list(context_ragged_split_types), feature_list_sparse_indices: \
         Nfeature_list_sparse*int64, feature_list_sparse_values: \
         list(feature_list_sparse_types), feature_list_sparse_shapes: \
         Nfeature_list_sparse*int64, feature_list_dense_values: \
         list(feature_list_dense_types), feature_list_dense_lengths: \
         Nfeature_list_dense*int64, feature_list_ragged_values: \
         list(feature_list_ragged_value_types), feature_list_ragged_outer_splits: \
         list(feature_list_ragged_split_types), feature_list_ragged_inner_splits: \
         list(feature_list_ragged_split_types) | Ncontext_sparse: int >= 0 = 0; \
         Tcontext_dense: list(type) >= 0 {float,int64,string} = []; context_sparse_types: \
         list(type) >= 0 {float,int64,string} = []; context_ragged_value_types: list(type) >= \
         0 {float,int64,string} = []; context_ragged_split_types: list(type) >= 0 \
         {int32,int64} = []; context_dense_shapes: list(shape) >= 0 = []; \
         Nfeature_list_sparse: int >= 0 = 0; Nfeature_list_dense: int >= 0 = 0; \
         feature_list_dense_types: list(type) >= 0 {float,int64,string} = []; \
         feature_list_sparse_types: list(type) >= 0 {float,int64,string} = []; \
         feature_list_ragged_value_types: list(type) >= 0 {float,int64,string} = []; \
         feature_list_ragged_split_types: list(type) >= 0 {int32,int64} = []; \
         feature_list_dense_shapes: list(shape) >= 0 = []",
    )
    .shape(|ctx| shape(ctx, Form::V2))
    .cost(Cost::Expensive)
    .kernel(|b| build(b, Form::V2)),
    Op::new(
        "ParseSingleSequenceExample",
        "serialized: string, feature_list_dense_missing_assumed_empty: string, \
         context_sparse_keys: Ncontext_sparse*string, context_dense_keys: \
         Ncontext_dense*string, feature_list_sparse_keys: Nfeature_list_sparse*string, \
         feature_list_dense_keys: Nfeature_list_dense*string, context_dense_defaults: \
         list(Tcontext_dense), debug_name: string -> context_sparse_indices: \
         Ncontext_sparse*int64, context_sparse_values: list(context_sparse_types), \
         context_sparse_shapes: Ncontext_sparse*int64, context_dense_values: \
         list(Tcontext_dense), feature_list_sparse_indices: Nfeature_list_sparse*int64, \
         feature_list_sparse_values: list(feature_list_sparse_types), \
         feature_list_sparse_shapes: Nfeature_list_sparse*int64, feature_list_dense_values: \
         list(feature_list_dense_types) | Ncontext_sparse: int >= 0 = 0; Ncontext_dense: int \
         >= 0 = 0; Nfeature_list_sparse: int >= 0 = 0; Nfeature_list_dense: int >= 0 = 0; \
         context_sparse_types: list(type) >= 0 {float,int64,string} = []; Tcontext_dense: \
         list(type) >= 0 {float,int64,string} = []; feature_list_dense_types: list(type) >= 0 \
         {float,int64,string} = []; context_dense_shapes: list(shape) >= 0 = []; \
         feature_list_sparse_types: list(type) >= 0 {float,int64,string} = []; \
         feature_list_dense_shapes: list(shape) >= 0 = []",
    )
    .shape(|ctx| shape(ctx, Form::Single))
    .cost(Cost::Expensive)
    .kernel(|b| build(b, Form::Single)),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    V1,
    V2,
    Single,
}

/// The dtypes and shapes of one part of the messages: the context or the feature lists.
struct Part {
    sparse: Vec<DType>,
    dense: Vec<(DType, Shape)>,
    /// Dtypes of values and of row splits.
    ragged: Vec<(DType, DType)>,
}

fn dtypes(attrs: &Attrs, name: &str) -> Result<Vec<DType>> {
    match attrs.get(name) {
        Some(_) => attrs.dtypes(name),
        None => Ok(Vec::new()),
    }
}

impl Part {
    fn of(attrs: &Attrs, prefix: &str, dense_types: &str) -> Result<Part> {
        let named = |name: &str| format!("{prefix}_{name}");
        let dense = dtypes(attrs, dense_types)?;
        let shapes = attrs.shapes(&named("dense_shapes"))?;
        if dense.len() != shapes.len() {
            return Err(invalid_argument!(
                "len({prefix}_dense_keys) != len({prefix}_dense_shapes): {} vs. {}",
                dense.len(),
                shapes.len()
            ));
        }
        let full = |shape: PartialShape| {
            let full = shape.to_full();
            full.ok_or_else(|| {
                invalid_argument!("{prefix}_dense_shapes must be fully defined, got {shape}")
            })
        };
        let values = dtypes(attrs, &named("ragged_value_types"))?;
        let splits = dtypes(attrs, &named("ragged_split_types"))?;
        if values.len() != splits.len() {
            return Err(invalid_argument!(
                "len({prefix}_ragged_value_types) != len({prefix}_ragged_split_types)"
            ));
        }
        let shapes = shapes.into_iter().map(full).collect::<Result<Vec<_>>>()?;
        Ok(Part {
            sparse: dtypes(attrs, &named("sparse_types"))?,
            dense: dense.into_iter().zip(shapes).collect(),
            ragged: values.into_iter().zip(splits).collect(),
        })
    }

    fn both(attrs: &Attrs) -> Result<[Part; 2]> {
        Ok([
            Part::of(attrs, "context", "Tcontext_dense")?,
            Part::of(attrs, "feature_list", "feature_list_dense_types")?,
        ])
    }
}

fn shape(ctx: &mut ShapeCtx, form: Form) -> Result<()> {
    let records = match form {
        Form::Single => ctx.with_rank(0, 0)?,
        _ => ctx.input(0),
    };
    let rank = match records.rank() {
        None => return Ok(()),
        Some(rank @ (0 | 1)) => rank,
        Some(_) => {
            return Err(invalid_argument!(
                "Shape must be at most rank 1 but is {records}"
            ));
        }
    };
    let batch = records.dims().unwrap_or_default().to_vec();
    let mut at = 0;
    for (part, more) in Part::both(ctx.attrs())?.into_iter().zip([1, 2]) {
        let n = part.sparse.len();
        for i in at..at + n {
            ctx.set(i, PartialShape::of([None, Some(rank + more)]));
            ctx.set(i + n, PartialShape::of([None]));
            ctx.set(i + 2 * n, PartialShape::of([Some(rank + more)]));
        }
        at += 3 * n;
        for (_, shape) in &part.dense {
            let rows = (more == 2).then_some(None);
            let dims = batch.iter().copied().chain(rows);
            ctx.set(
                at,
                PartialShape::of(dims.chain(shape.iter().map(|&d| Some(d)))),
            );
            at += 1;
        }
        if more == 2 && form != Form::Single {
            for _ in &part.dense {
                ctx.set(at, PartialShape::of(batch.iter().copied()));
                at += 1;
            }
        }
        for _ in &part.ragged {
            ctx.set(at, PartialShape::of([None]));
            at += 1;
        }
        for _ in &part.ragged {
            ctx.set(at, PartialShape::of(batch.iter().map(|n| n.map(|n| n + 1))));
            at += 1;
        }
        if more == 2 {
            for _ in &part.ragged {
                ctx.set(at, PartialShape::of([None]));
                at += 1;
            }
        }
    }
    Ok(())
}

/// Keys of sparse, dense and ragged features.
type Keys = [Vec<Key>; 3];

struct Parser {
    form: Form,
    parts: [Part; 2],
    /// The keys of both parts, and of the feature lists that may be missing, if they are attrs.
    keys: Option<([Keys; 2], Vec<Key>)>,
}

fn build(build: &KernelBuild, form: Form) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let owned = |name: &str| Key::all_of(attrs, name);
    let keys = match form {
        Form::V1 => {
            let of = |prefix: &str| -> Result<Keys> {
                Ok([
                    owned(&format!("{prefix}_sparse_keys"))?,
                    owned(&format!("{prefix}_dense_keys"))?,
                    Vec::new(),
                ])
            };
            let missing = owned("feature_list_dense_missing_assumed_empty")?;
            Some(([of("context")?, of("feature_list")?], missing))
        }
        _ => None,
    };
    let parser = Parser {
        form,
        parts: Part::both(attrs)?,
        keys,
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        for (i, out) in parser.parse(ctx)?.into_iter().enumerate() {
            ctx.set_output(i, out)?;
        }
        Ok(())
    }))
}

/// What a call parses with.
struct Call {
    keys: [Keys; 2],
    /// Whether each dense feature list may be missing.
    may_miss: Vec<bool>,
    names: Vec<Bytes>,
    /// The position of the first default.
    defaults: usize,
}

/// Checks that no key is of two kinds.
fn check_keys(keys: &[Keys; 2]) -> Result<()> {
    for (keys, part) in keys.iter().zip(["Context", "Sequence"]) {
        let [sparse, dense, ragged] = keys;
        if let Some(key) = ragged.iter().find(|key| sparse.contains(key)) {
            return Err(invalid_argument!(
                "{part} feature {key} cannot be both ragged and sparse"
            ));
        }
        if let Some(key) = dense
            .iter()
            .find(|key| sparse.contains(key) || ragged.contains(key))
        {
            return Err(invalid_argument!(
                "{part} feature {key} cannot be both dense and sparse"
            ));
        }
    }
    Ok(())
}

impl Parser {
    fn call(&self, ctx: &KernelCtx) -> Result<Call> {
        let lengths = self
            .parts
            .each_ref()
            .map(|p| [p.sparse.len(), p.dense.len()]);
        let may_miss = |missing: &[Key], dense: &[Key]| -> Vec<bool> {
            dense.iter().map(|key| missing.contains(key)).collect()
        };
        match (self.form, &self.keys) {
            (Form::V1, Some((keys, missing))) => Ok(Call {
                may_miss: may_miss(missing, &keys[1][1]),
                keys: keys.clone(),
                names: ctx.input(1)?.strings()?.to_vec(),
                defaults: 2,
            }),
            (Form::Single, _) => {
                let mut at = 2;
                let mut each = |n: usize| -> Result<Vec<Key>> {
                    let keys = (at..at + n).map(|i| Key::all_in(ctx, i));
                    let keys = keys.collect::<Result<Vec<_>>>()?.concat();
                    at += n;
                    Ok(keys)
                };
                let keys = [
                    [each(lengths[0][0])?, each(lengths[0][1])?, Vec::new()],
                    [each(lengths[1][0])?, each(lengths[1][1])?, Vec::new()],
                ];
                Ok(Call {
                    may_miss: may_miss(&Key::all_in(ctx, 1)?, &keys[1][1]),
                    keys,
                    names: ctx.input(at + lengths[0][1])?.strings()?.to_vec(),
                    defaults: at,
                })
            }
            _ => Ok(Call {
                keys: [
                    [
                        Key::all_in(ctx, 2)?,
                        Key::all_in(ctx, 3)?,
                        Key::all_in(ctx, 4)?,
                    ],
                    [
                        Key::all_in(ctx, 5)?,
                        Key::all_in(ctx, 6)?,
                        Key::all_in(ctx, 7)?,
                    ],
                ],
                may_miss: ctx.slice::<bool>(8)?.to_vec(),
                names: ctx.input(1)?.strings()?.to_vec(),
                defaults: 9,
            }),
        }
    }

    fn check(&self, ctx: &KernelCtx, call: &Call) -> Result<()> {
        let kinds = ["sparse", "dense", "ragged"];
        let counts = [
            [
                "Ncontext_sparse",
                "len(Tcontext_dense)",
                "len(context_ragged_value_types)",
            ],
            [
                "Nfeature_list_sparse",
                "Nfeature_list_dense",
                "len(feature_list_ragged_value_types)",
            ],
        ];
        for (i, prefix) in ["context", "feature_list"].into_iter().enumerate() {
            let part = &self.parts[i];
            let wanted = [part.sparse.len(), part.dense.len(), part.ragged.len()];
            for kind in [1, 0, 2] {
                if call.keys[i][kind].len() != wanted[kind] {
                    return Err(invalid_argument!(
                        "Expected len({prefix}_{}_keys) to match {}",
                        kinds[kind],
                        counts[i][kind]
                    ));
                }
                if i == 1 && kind == 1 && call.may_miss.len() != wanted[1] {
                    return Err(invalid_argument!(
                        "Expected len(feature_list_dense_missing_assumed_empty to match \
                         Nfeature_list_dense"
                    ));
                }
            }
        }
        for (d, (dtype, shape)) in self.parts[0].dense.iter().enumerate() {
            let default = ctx.input(call.defaults + d)?;
            if default.num_elements() == 0 {
                continue;
            }
            if default.shape() != shape {
                return Err(invalid_argument!(
                    "default_value[{d}].shape() == {} != context_dense_shapes[{d}] == {shape}",
                    default.shape()
                ));
            }
            if default.dtype() != *dtype {
                return Err(invalid_argument!(
                    "context_dense_defaults[{d}].dtype() == {} != context_dense_types[{d}] == \
                     {dtype}",
                    default.dtype()
                ));
            }
        }
        Ok(())
    }

    fn parse(&self, ctx: &KernelCtx) -> Result<Vec<Tensor>> {
        let serialized = ctx.input(0)?;
        let rank = serialized.shape().rank();
        if rank > usize::from(self.form != Form::Single) {
            let wanted = match self.form {
                Form::Single => "scalar",
                _ => "scalar or vector",
            };
            return Err(invalid_argument!(
                "Expected serialized to be a {wanted}, got shape: {}",
                serialized.shape()
            ));
        }
        let call = self.call(ctx)?;
        self.check(ctx, &call)?;
        let n = serialized.num_elements();
        if !call.names.is_empty() && call.names.len() != n {
            return Err(invalid_argument!(
                "example_names must be empty or have the correct number of elements"
            ));
        }
        check_keys(&call.keys)?;
        let [context, lists] = call.keys.each_ref().map(|keys| keys.concat());
        let strings = serialized.strings()?;
        let strings: Cow<[Bytes]> = match self.form {
            // TensorFlow decodes these.
            Form::Single => merged(strings, &call.names)?.into(),
            _ => strings.into(),
        };
        let records = found(ctx, &strings, &call.names, [&context, &lists])?;
        self.outputs(ctx, &call, &records, rank == 1)
    }

    fn outputs(
        &self,
        ctx: &KernelCtx,
        call: &Call,
        records: &Records,
        batch: bool,
    ) -> Result<Vec<Tensor>> {
        let names = &call.names;
        let contexts = |key: &Key, dtype: DType| Context::gather(records, key, dtype, names);
        let lists = |key: &Key, dtype: DType| List::gather(records, key, dtype, names);
        let ([part, list_part], [keys, list_keys]) = (&self.parts, &call.keys);
        let mut columns = [Vec::new(), Vec::new(), Vec::new()];
        for (key, dtype) in keys[0].iter().zip(&part.sparse) {
            let tensors = contexts(key, *dtype)?.sparse(batch)?;
            columns.iter_mut().zip(tensors).for_each(|(c, t)| c.push(t));
        }
        let mut out = columns.concat();
        for (i, (key, (dtype, shape))) in keys[1].iter().zip(&part.dense).enumerate() {
            let default = ctx.input(call.defaults + i)?;
            out.push(contexts(key, *dtype)?.dense(key, shape, default, batch, names)?);
        }
        let mut splits = Vec::new();
        for (key, (dtype, split)) in keys[2].iter().zip(&part.ragged) {
            let [values, rows] = contexts(key, *dtype)?.ragged(*split, batch)?;
            out.push(values);
            splits.push(rows);
        }
        out.append(&mut splits);
        let mut columns = [Vec::new(), Vec::new(), Vec::new()];
        for (key, dtype) in list_keys[0].iter().zip(&list_part.sparse) {
            let tensors = lists(key, *dtype)?.sparse(batch)?;
            columns.iter_mut().zip(tensors).for_each(|(c, t)| c.push(t));
        }
        out.append(&mut columns.concat());
        let mut lengths = Vec::new();
        let dense = list_keys[1].iter().zip(&list_part.dense);
        for ((key, (dtype, shape)), may_miss) in dense.zip(&call.may_miss) {
            let list = lists(key, *dtype)?;
            let [values, rows] = list.dense(key, shape, *may_miss, batch, names)?;
            out.push(values);
            lengths.push(rows);
        }
        if self.form != Form::Single {
            out.append(&mut lengths);
        }
        let mut columns = [Vec::new(), Vec::new(), Vec::new()];
        for (key, (dtype, split)) in list_keys[2].iter().zip(&list_part.ragged) {
            let tensors = lists(key, *dtype)?.ragged(*split, batch)?;
            columns.iter_mut().zip(tensors).for_each(|(c, t)| c.push(t));
        }
        out.append(&mut columns.concat());
        Ok(out)
    }
}
