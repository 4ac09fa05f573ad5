//! DecodeCSV (TensorFlow: `core/kernels/decode_csv_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::number_text::Number;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{Bytes, DType, Shape, Tensor};

/// DecodeCSV.
pub(crate) const OPS: &[Op] = &[Op::new(
    "DecodeCSV",
    "records: string, record_defaults: list(OUT_TYPE) -> output: list(OUT_TYPE) | \
         OUT_TYPE: list(type) >= 1 {float,double,int32,int64,string}; field_delim: \
         string = ','; use_quote_delim: bool = true; na_value: string = ''; \
         select_cols: list(int) = []",
)
.shape(|ctx| {
    for i in 1..ctx.num_inputs() {
        let default = ctx.input(i);
        if default.rank().is_some_and(|r| r > 1) {
            return Err(invalid_argument!(
                "Shape of a default must be a length-0 or length-1 vector, or a scalar."
            ));
        }
        if default.dim(0).is_some_and(|n| n > 1) {
            return Err(invalid_argument!(
                "Shape of a default must be a length-0 or length-1 vector, or a scalar."
            ));
        }
    }
    let records = ctx.input(0);
    (0..ctx.num_outputs()).for_each(|i| ctx.set(i, records.clone()));
    Ok(())
})
.kernel(build)];

struct Csv {
    delimiter: u8,
    quotes: bool,
    missing: String,
    /// The selected columns, ascending; all if empty.
    columns: Vec<usize>,
    dtypes: Vec<DType>,
}

fn build(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let (dtypes, picked) = (build.outputs.to_vec(), attrs.ints("select_cols")?);
    if !picked.is_empty() && picked.len() != dtypes.len() {
        return Err(invalid_argument!("select_cols should match output size"));
    }
    if !picked.is_sorted_by(|a, b| a < b) {
        return Err(invalid_argument!(
            "select_cols should be strictly increasing indices"
        ));
    }
    let columns = picked.iter().map(|&c| usize::try_from(c));
    let columns = columns
        .collect::<std::result::Result<Vec<_>, _>>()
        .map_err(|_| invalid_argument!("select_cols should be non-negative indices"))?;
    let &[delimiter] = attrs.str("field_delim")?.as_bytes() else {
        return Err(invalid_argument!("field_delim should be only 1 char"));
    };
    let csv = Csv {
        delimiter,
        quotes: attrs.bool("use_quote_delim")?,
        missing: attrs.str("na_value")?.to_string(),
        columns,
        dtypes,
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        for (i, column) in csv.decode(ctx)?.into_iter().enumerate() {
            ctx.set_output(i, column)?;
        }
        Ok(())
    }))
}

impl Csv {
    fn decode(&self, ctx: &KernelCtx) -> Result<Vec<Tensor>> {
        let records = ctx.input(0)?;
        let n = self.dtypes.len();
        for i in 0..n {
            let default = ctx.input(i + 1)?;
            if default.shape().rank() > 1 {
                return Err(invalid_argument!(
                    "Each record default should be at most rank 1"
                ));
            }
            if default.num_elements() > 1 {
                return Err(invalid_argument!(
                    "There should only be 1 default per field but field {i} has {}",
                    default.num_elements()
                ));
            }
        }
        let (all, shape) = (records.strings()?, records.shape());
        self.columns_of(ctx, all, 0, shape).or_else(|e| {
            // Of several faults, that of the first record counts.
            for (r, record) in all.iter().enumerate() {
                self.columns_of(ctx, std::slice::from_ref(record), r, &[1].into())?;
            }
            Err(e)
        })
    }

    /// Returns the columns of records, of which the first has the number `start`.
    fn columns_of(
        &self,
        ctx: &KernelCtx,
        records: &[Bytes],
        start: usize,
        shape: &Shape,
    ) -> Result<Vec<Tensor>> {
        let n = self.dtypes.len();
        let mut rows = Vec::with_capacity(records.len());
        for (r, record) in (start..).zip(records) {
            let fields = self.fields(record)?;
            let fields = match self.columns.as_slice() {
                [] if fields.len() == n => fields,
                [] => {
                    return Err(invalid_argument!(
                        "Expect {n} fields but have {} in record {r}",
                        fields.len()
                    ));
                }
                columns => {
                    let picked: Vec<Vec<u8>> = columns
                        .iter()
                        .filter_map(|&c| fields.get(c).cloned())
                        .collect();
                    if picked.len() != n {
                        return Err(invalid_argument!(
                            "Expect {n} fields but have {} in record {r}",
                            picked.len()
                        ));
                    }
                    picked
                }
            };
            rows.push(fields);
        }
        let columns = self.dtypes.iter().enumerate();
        columns
            .map(|(f, dtype)| {
                let (default, shape) = (ctx.input(f + 1)?, shape.clone());
                match dtype {
                    DType::Float => self.numbers::<f32>(&rows, start, f, default, shape),
                    DType::Double => self.numbers::<f64>(&rows, start, f, default, shape),
                    DType::Int32 => self.numbers::<i32>(&rows, start, f, default, shape),
                    DType::Int64 => self.numbers::<i64>(&rows, start, f, default, shape),
                    _ => {
                        let default = default.strings()?.first();
                        let words = (start..).zip(&rows).map(|(r, row)| {
                            match (row.get(f).filter(|x| !self.is_missing(x)), default) {
                                (Some(field), _) => Ok(Bytes::from(field.clone())),
                                (None, Some(default)) => Ok(default.clone()),
                                _ => Err(required(f, r)),
                            }
                        });
                        Tensor::from_strings(shape, words.collect::<Result<_>>()?)
                    }
                }
            })
            .collect()
    }

    fn is_missing(&self, field: &[u8]) -> bool {
        field.is_empty() || field == self.missing.as_bytes()
    }

    fn numbers<T: ferroflow_tensor::Element + Number>(
        &self,
        rows: &[Vec<Vec<u8>>],
        start: usize,
        f: usize,
        default: &Tensor,
        shape: Shape,
    ) -> Result<Tensor> {
        let default = default.slice::<T>()?.first();
        let mut values = Vec::with_capacity(rows.len());
        for (r, row) in (start..).zip(rows) {
            let field = row.get(f).filter(|x| !self.is_missing(x));
            values.push(match (field, default) {
                (Some(field), _) => T::parse(field).ok_or_else(|| {
                    invalid_argument!(
                        "Field {f} in record {r} is not a valid {}: {}",
                        T::DTYPE,
                        String::from_utf8_lossy(field)
                    )
                })?,
                (None, Some(default)) => *default,
                _ => return Err(required(f, r)),
            });
        }
        Tensor::from_slice(shape, &values)
    }

    /// Splits a record into fields (RFC 4180).
    fn fields(&self, record: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut fields = Vec::new();
        if record.is_empty() {
            return Ok(fields);
        }
        let mut rest = record;
        loop {
            let (field, after) = match rest {
                [b'"', quoted @ ..] if self.quotes => self.quoted(quoted)?,
                _ => self.plain(rest)?,
            };
            fields.push(field);
            match after {
                [_, more @ ..] => rest = more,
                [] => return Ok(fields),
            }
        }
    }

    /// Returns a field up to the delimiter, and the rest.
    fn plain<'a>(&self, text: &'a [u8]) -> Result<(Vec<u8>, &'a [u8])> {
        let end = text.iter().position(|&b| b == self.delimiter);
        let (field, rest) = text.split_at(end.unwrap_or(text.len()));
        let bad = |b: &u8| matches!(b, b'\n' | b'\r') || *b == b'"' && self.quotes;
        if field.iter().any(bad) {
            return Err(invalid_argument!(
                "Unquoted fields cannot have quotes/CRLFs inside"
            ));
        }
        Ok((field.to_vec(), rest))
    }

    /// Returns a field after its opening quote; a doubled quote stands for one.
    fn quoted<'a>(&self, mut text: &'a [u8]) -> Result<(Vec<u8>, &'a [u8])> {
        let mut field = Vec::new();
        loop {
            text = match text {
                [b'"', b'"', rest @ ..] => {
                    field.push(b'"');
                    rest
                }
                [b'"', rest @ ..] => {
                    return match rest.first() {
                        Some(&next) if next != self.delimiter => Err(invalid_argument!(
                            "Quote inside a string has to be escaped by another quote"
                        )),
                        _ => Ok((field, rest)),
                    };
                }
                [byte, rest @ ..] => {
                    field.push(*byte);
                    rest
                }
                [] => {
                    return Err(invalid_argument!(
                        "Quoted field has to end with quote followed by delim or end"
                    ));
                }
            };
        }
    }
}

#[cold]
fn required(field: usize, record: usize) -> ferroflow_base::Status {
    invalid_argument!("Field {field} is required but missing in record {record}!")
}
