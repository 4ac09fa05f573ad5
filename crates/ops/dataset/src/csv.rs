//! Rows of CSV files: CSVDataset, CSVDatasetV2 (TensorFlow: `core/kernels/data/experimental/
//! csv_dataset_op.cc`).

use crate::common::{flag, make, n_of, names, number, some, text};
use crate::files::{Files, Format, Records};
use ferroflow_base::{Result, Status, data_loss, invalid_argument};
use ferroflow_functors::number_text::Number;
use ferroflow_functors::shapes;
use ferroflow_model::{RecordCompression, open_decompressed};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_resources::dataset::Components;
use ferroflow_resources::file_system::{io_error, local_path};
use ferroflow_tensor::{DType, Tensor};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "CSVDataset",
        "filenames: string, compression_type: string, buffer_size: int64, header: bool, \
         field_delim: string, use_quote_delim: bool, na_value: string, select_cols: int64, \
         record_defaults: list(output_types) -> handle: variant | output_types: list(type) >= \
         1 {float,double,int32,int64,string}; output_shapes: list(shape) >= 1 | stateful",
    )
    .shape(shapes::scalar)
    .kernel(csv),
    Op::new(
        "ExperimentalCSVDataset",
        "filenames: string, compression_type: string, buffer_size: int64, header: bool, \
         field_delim: string, use_quote_delim: bool, na_value: string, select_cols: int64, \
         record_defaults: list(output_types) -> handle: variant | output_types: list(type) >= \
         1 {float,double,int32,int64,string}; output_shapes: list(shape) >= 1 | stateful",
    )
    .shape(shapes::scalar)
    .kernel(csv),
    Op::new(
        "CSVDatasetV2",
        "filenames: string, compression_type: string, buffer_size: int64, header: bool, \
         field_delim: string, use_quote_delim: bool, na_value: string, select_cols: int64, \
         record_defaults: list(output_types), exclude_cols: int64 -> handle: variant | \
         output_types: list(type) >= 1 {float,double,int32,int64,string}; output_shapes: \
         list(shape) >= 1 | stateful",
    )
    .shape(shapes::scalar)
    .kernel(csv_v2),
];

/// How CSV files are read.
struct Csv {
    compression: RecordCompression,
    has_header: bool,
    layout: Arc<Layout>,
}

/// What rows look like, and which of their columns are wanted.
struct Layout {
    delimiter: u8,
    has_quotes: bool,
    /// The text that stands for the default value, besides the empty one.
    absent: Vec<u8>,
    defaults: Vec<Tensor>,
    dtypes: Vec<DType>,
    columns: Columns,
}

enum Columns {
    All,
    Only(Vec<u64>),
    Without(Vec<u64>),
}

impl Columns {
    fn has(&self, column: u64) -> bool {
        match self {
            Columns::All => true,
            Columns::Only(list) => list.binary_search(&column).is_ok(),
            Columns::Without(list) => list.binary_search(&column).is_err(),
        }
    }
}

fn csv(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let n = n_of(build, "output_types")?;
    make(build, move |ctx, spec| {
        Ok(source(ctx, &spec.dtypes, some(ctx, 8, 8 + n)?, false)?)
    })
}

fn csv_v2(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let n = n_of(build, "output_types")?;
    make(build, move |ctx, spec| {
        Ok(source(ctx, &spec.dtypes, some(ctx, 8, 8 + n)?, true)?)
    })
}

/// Returns increasing column numbers.
fn columns(t: &Tensor, name: &str, dot: &str) -> Result<Vec<u64>> {
    if t.shape().rank() != 1 {
        return Err(invalid_argument!("`{name}` must be a vector{dot}"));
    }
    let list = t.slice::<i64>()?;
    if list.windows(2).any(|pair| pair.first() >= pair.last()) {
        return Err(invalid_argument!(
            "{name} should be strictly increasing indices"
        ));
    }
    let column = |&i: &i64| {
        u64::try_from(i).map_err(|_| invalid_argument!("{name} should be non-negative indices"))
    };
    list.iter().map(column).collect()
}

fn source(
    ctx: &KernelCtx,
    dtypes: &[DType],
    defaults: Vec<Tensor>,
    may_exclude: bool,
) -> Result<Arc<Files<Csv>>> {
    let names = names(ctx.input(0)?, "filenames")?;
    let compression = text(ctx, 1, "compression_type")?;
    for (i, default) in defaults.iter().enumerate() {
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
    let only = columns(ctx.input(7)?, "select_cols", ".")?;
    let without = match may_exclude {
        true => columns(ctx.input(ctx.num_inputs() - 1)?, "exclude_cols", "")?,
        false => Vec::new(),
    };
    if number(ctx, 2, "buffer_size")? <= 0 {
        return Err(invalid_argument!("buffer_size should be positive"));
    }
    let delimiter = text(ctx, 4, "field_delim")?;
    let &[delimiter] = delimiter.as_bytes() else {
        return Err(invalid_argument!("field_delim should be only 1 char"));
    };
    let compression = match compression.as_str() {
        "" => RecordCompression::None,
        "ZLIB" => RecordCompression::Zlib,
        "GZIP" => RecordCompression::Gzip,
        other => {
            return Err(invalid_argument!("Unsupported compression_type: {other}."));
        }
    };
    if !only.is_empty() && only.len() != dtypes.len() {
        return Err(invalid_argument!("select_cols should match output size"));
    }
    let columns = match (only.is_empty(), without.is_empty()) {
        (true, true) => Columns::All,
        (false, true) => Columns::Only(only),
        (true, false) => Columns::Without(without),
        (false, false) => {
            return Err(invalid_argument!(
                "Either select_cols or exclude_cols should be empty"
            ));
        }
    };
    let format = Csv {
        compression,
        has_header: flag(ctx, 3, "header")?,
        layout: Arc::new(Layout {
            delimiter,
            has_quotes: flag(ctx, 5, "use_quote_delim")?,
            absent: text(ctx, 6, "na_value")?.into_bytes(),
            defaults,
            dtypes: dtypes.to_vec(),
            columns,
        }),
    };
    Ok(Arc::new(Files { names, format }))
}

impl Format for Csv {
    fn open(&self, _: usize, name: &str, position: u64) -> Result<Box<dyn Records>> {
        let path = local_path(name);
        let mut rows = Rows {
            source: Box::new(open_decompressed(Path::new(path), self.compression)?),
            path: path.to_string(),
            buffer: Vec::new(),
            at: 0,
            position: 0,
            failed: false,
            layout: self.layout.clone(),
        };
        if position == 0 {
            if self.has_header && rows.record(false)?.is_none() {
                return Err(invalid_argument!("Can't read header of file"));
            }
        } else {
            while rows.position < position && rows.peek()?.is_some() {
                let ahead = (position - rows.position).min((rows.buffer.len() - rows.at) as u64);
                rows.at += ahead as usize;
                rows.position += ahead;
            }
        }
        Ok(Box::new(rows))
    }
}

/// A file that is being read.
struct Rows {
    source: Box<dyn Read + Send>,
    path: String,
    buffer: Vec<u8>,
    at: usize,
    position: u64,
    /// Whether the file cannot be read further.
    failed: bool,
    layout: Arc<Layout>,
}

/// What ended a field.
#[derive(PartialEq)]
enum End {
    Field,
    Record,
}

impl Rows {
    /// Returns the next byte without taking it; `None` at the end of the file.
    #[inline]
    fn peek(&mut self) -> Result<Option<u8>> {
        match self.buffer.get(self.at) {
            Some(&byte) => Ok(Some(byte)),
            None => self.refill(),
        }
    }

    #[cold]
    fn refill(&mut self) -> Result<Option<u8>> {
        self.buffer.clear();
        self.at = 0;
        let chunk = (&mut self.source)
            .take(1 << 18)
            .read_to_end(&mut self.buffer);
        if let Err(e) = chunk {
            self.failed = true;
            use std::io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
            return Err(match e.kind() {
                InvalidData | InvalidInput | UnexpectedEof => data_loss!("{}: {e}", self.path),
                _ => io_error(&self.path, &e),
            });
        }
        Ok(self.buffer.first().copied())
    }

    fn take(&mut self) {
        self.at += 1;
        self.position += 1;
    }

    /// Takes the rest of a line break whose first byte was taken.
    fn line_break(&mut self, first: u8) -> Result<()> {
        if first == b'\r' && self.peek()? == Some(b'\n') {
            self.take();
        }
        Ok(())
    }

    /// Parses a record; `None` at the end of the file. The header's fields are not `wanted`.
    fn record(&mut self, wanted: bool) -> Result<Option<Components>> {
        if self.peek()?.is_none() {
            return Ok(None);
        }
        let layout = self.layout.clone();
        let (mut element, mut field) = (Vec::new(), Vec::new());
        let mut problem: Option<Status> = None;
        for column in 0.. {
            field.clear();
            let (end, fault) = match self.peek()? {
                Some(b'"') if layout.has_quotes => self.quoted(&layout, &mut field)?,
                _ => self.unquoted(&layout, &mut field)?,
            };
            if wanted && layout.columns.has(column) {
                let added = match fault {
                    Some(fault) => Err(fault),
                    None => layout.add(&field, &mut element),
                };
                problem = problem.or(added.err());
            } else {
                problem = problem.or(fault.filter(|_| wanted));
            }
            if end == End::Record {
                break;
            }
        }
        match problem {
            Some(problem) => Err(problem),
            None if wanted && element.len() != layout.dtypes.len() => Err(invalid_argument!(
                "Expect {} fields but have {} in record",
                layout.dtypes.len(),
                element.len()
            )),
            None => Ok(Some(element)),
        }
    }

    fn quoted(&mut self, layout: &Layout, field: &mut Vec<u8>) -> Result<(End, Option<Status>)> {
        self.take();
        let mut fault = None;
        loop {
            let Some(byte) = self.peek()? else {
                return Err(invalid_argument!(
                    "Reached end of file without closing quoted field in record"
                ));
            };
            self.take();
            if byte != b'"' {
                field.push(byte);
                continue;
            }
            let Some(next) = self.peek()? else {
                return Ok((End::Record, fault));
            };
            self.take();
            if next == layout.delimiter {
                return Ok((End::Field, fault));
            }
            match next {
                b'\n' | b'\r' => {
                    self.line_break(next)?;
                    return Ok((End::Record, fault));
                }
                b'"' => field.push(b'"'),
                _ => {
                    fault.get_or_insert_with(|| {
                        invalid_argument!(
                            "Quote inside a string has to be escaped by another quote"
                        )
                    });
                }
            }
        }
    }

    fn unquoted(&mut self, layout: &Layout, field: &mut Vec<u8>) -> Result<(End, Option<Status>)> {
        let mut fault = None;
        loop {
            let Some(byte) = self.peek()? else {
                return Ok((End::Record, fault));
            };
            self.take();
            if byte == layout.delimiter {
                return Ok((End::Field, fault));
            }
            match byte {
                b'\n' | b'\r' => {
                    self.line_break(byte)?;
                    return Ok((End::Record, fault));
                }
                b'"' if layout.has_quotes => {
                    fault.get_or_insert_with(|| {
                        invalid_argument!("Unquoted fields cannot have quotes inside")
                    });
                }
                _ => field.push(byte),
            }
        }
    }
}

impl Layout {
    /// Appends the value of a field to an element.
    fn add(&self, field: &[u8], element: &mut Components) -> Result<()> {
        let i = element.len();
        let Some(&dtype) = self.dtypes.get(i) else {
            return Err(invalid_argument!(
                "Expect {} fields but have more in record",
                self.dtypes.len()
            ));
        };
        if field.is_empty() || field == self.absent {
            let default = self.defaults.get(i).filter(|t| t.num_elements() == 1);
            let Some(default) = default else {
                return Err(invalid_argument!(
                    "Field {i} is required but missing in record!"
                ));
            };
            element.push(default.clone().with_shape(Default::default())?);
            return Ok(());
        }
        let value = match dtype {
            DType::Int32 => i32::parse(field).map(Tensor::scalar),
            DType::Int64 => i64::parse(field).map(Tensor::scalar),
            DType::Float => f32::parse(field).map(Tensor::scalar),
            DType::Double => f64::parse(field).map(Tensor::scalar),
            DType::String => Some(Tensor::string(field.to_vec())),
            _ => {
                return Err(invalid_argument!(
                    "csv: data type {dtype} not supported in field {i}"
                ));
            }
        };
        let text = String::from_utf8_lossy(field);
        element.push(value.ok_or_else(|| {
            invalid_argument!("Field {i} in record is not a valid {dtype}: {text}")
        })?);
        Ok(())
    }
}

impl Records for Rows {
    fn next(&mut self) -> Result<Option<Components>> {
        self.record(true)
    }

    fn position(&self) -> u64 {
        self.position
    }

    fn goes_on(&self) -> bool {
        !self.failed
    }
}
