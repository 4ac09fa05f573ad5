//! TFRecord files: records one after another, each with checksums of its length and its bytes.

use crate::atomic_file::io_error;
use crate::files::{self, FileWriter};
use crate::sstable::{mask, unmask};
use ferroflow_base::{Result, Status, data_loss, invalid_argument};
use flate2::Compression;
use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// The compression of a record file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecordCompression {
    /// Uncompressed.
    #[default]
    None,
    /// A zlib stream.
    Zlib,
    /// The gzip format.
    Gzip,
}

impl RecordCompression {
    /// Returns the compression with TensorFlow's name: `""`, `"NONE"`, `"ZLIB"` or `"GZIP"`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for other names.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "" | "NONE" => Ok(RecordCompression::None),
            "ZLIB" => Ok(RecordCompression::Zlib),
            "GZIP" => Ok(RecordCompression::Gzip),
            _ => Err(invalid_argument!("Unsupported compression_type: {name}")),
        }
    }
}

/// Reads and decompresses a whole file.
///
/// # Errors
/// DATA_LOSS if the compressed data is damaged; other file system errors.
pub fn read_compressed(path: &Path, compression: RecordCompression) -> Result<Vec<u8>> {
    let mut reader = RecordReader::open(path, compression)?;
    let mut data = Vec::new();
    let read = reader.source.read_to_end(&mut data);
    read.map_err(|e| reader.broken(&e))?;
    Ok(data)
}

/// Opens a file to be read through its decompression, with a buffer.
///
/// # Errors
/// A file system error, such as NOT_FOUND.
pub fn open_decompressed(
    path: &Path,
    compression: RecordCompression,
) -> Result<Box<dyn BufRead + Send>> {
    let file = files::open(path).map_err(|e| io_error(path, &e))?;
    let file = BufReader::with_capacity(1 << 18, file);
    Ok(match compression {
        RecordCompression::None => Box::new(file),
        RecordCompression::Zlib => Box::new(BufReader::new(ZlibDecoder::new(file))),
        RecordCompression::Gzip => Box::new(BufReader::new(MultiGzDecoder::new(file))),
    })
}

/// Reads the records of a file in order.
///
/// ```
/// use ferroflow_model::{RecordCompression, RecordReader, RecordWriter};
/// let path = std::env::temp_dir().join(format!("ferroflow-{}.tfrecord", std::process::id()));
/// let mut writer = RecordWriter::create(&path, RecordCompression::None)?;
/// writer.write(b"one")?;
/// writer.write(b"two")?;
/// writer.finish()?;
/// let records = RecordReader::open(&path, RecordCompression::None)?;
/// let records = records.collect::<ferroflow_base::Result<Vec<_>>>()?;
/// assert_eq!(records, [b"one", b"two"]);
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), ferroflow_base::Status>(())
/// ```
pub struct RecordReader {
    path: PathBuf,
    source: Box<dyn BufRead + Send>,
    offset: u64,
    failed: bool,
}

impl RecordReader {
    /// Opens a file of records.
    ///
    /// # Errors
    /// A file system error, such as NOT_FOUND.
    pub fn open(path: &Path, compression: RecordCompression) -> Result<RecordReader> {
        Ok(RecordReader {
            path: path.to_path_buf(),
            source: open_decompressed(path, compression)?,
            offset: 0,
            failed: false,
        })
    }

    /// Passes bytes of the uncompressed file over, up to a record that begins at `offset`.
    ///
    /// # Errors
    /// As for [`RecordReader::read`].
    pub fn skip_to(&mut self, offset: u64) -> Result<()> {
        let ahead = offset.saturating_sub(self.offset);
        let skipped = std::io::copy(&mut (&mut self.source).take(ahead), &mut std::io::sink());
        self.offset += skipped.map_err(|e| self.broken(&e))?;
        Ok(())
    }

    /// Returns the offset of the next record in the uncompressed file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the next record; `None` at the end of the file.
    ///
    /// # Errors
    /// DATA_LOSS if the record is damaged or truncated; other file system errors.
    pub fn read(&mut self) -> Result<Option<Vec<u8>>> {
        let mut header = [0u8; 12];
        match self.fill(&mut header)? {
            0 => return Ok(None),
            12 => {}
            _ => return Err(self.damaged("truncated")),
        }
        let (length, sum) = header.split_at(8);
        if crc32c::crc32c(length) != stored(sum) {
            return Err(self.damaged("corrupted"));
        }
        let n = length.try_into().map_or(u64::MAX, u64::from_le_bytes);
        let Some(whole) = n.checked_add(4).filter(|&n| n <= isize::MAX as u64) else {
            return Err(self.damaged("corrupted"));
        };
        // A length is only trusted as far as there is data.
        let mut data = Vec::new();
        let read = (&mut self.source).take(whole).read_to_end(&mut data);
        read.map_err(|e| self.broken(&e))?;
        let at = data
            .len()
            .checked_sub(4)
            .filter(|_| data.len() as u64 == whole);
        let Some(at) = at else {
            return Err(self.damaged("truncated"));
        };
        let sum = data.split_off(at);
        if crc32c::crc32c(&data) != stored(&sum) {
            return Err(self.damaged("corrupted"));
        }
        self.offset += 12 + whole;
        Ok(Some(data))
    }

    /// Reads until `to` is full or the file ends; returns the number of bytes.
    fn fill(&mut self, to: &mut [u8]) -> Result<usize> {
        let mut n = 0;
        while let Some(rest) = to.get_mut(n..).filter(|r| !r.is_empty()) {
            match self.source.read(rest) {
                Ok(0) => break,
                Ok(read) => n += read,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.broken(&e)),
            }
        }
        Ok(n)
    }

    #[cold]
    fn damaged(&self, how: &str) -> Status {
        data_loss!("{how} record at {} in {}", self.offset, self.path.display())
    }

    #[cold]
    fn broken(&self, error: &std::io::Error) -> Status {
        match error.kind() {
            std::io::ErrorKind::InvalidInput
            | std::io::ErrorKind::InvalidData
            | std::io::ErrorKind::UnexpectedEof => {
                data_loss!("{}: {error}", self.path.display())
            }
            _ => io_error(&self.path, error),
        }
    }
}

fn stored(sum: &[u8]) -> u32 {
    unmask(sum.try_into().map_or(0, u32::from_le_bytes))
}

impl Iterator for RecordReader {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let record = self.read().transpose();
        self.failed = matches!(record, Some(Err(_)));
        record
    }
}

enum Sink {
    None(BufWriter<FileWriter>),
    Zlib(ZlibEncoder<BufWriter<FileWriter>>),
    Gzip(GzEncoder<BufWriter<FileWriter>>),
}

impl Sink {
    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Sink::None(w) => w,
            Sink::Zlib(w) => w,
            Sink::Gzip(w) => w,
        }
    }
}

/// Writes records to a file; [`RecordReader`] has an example.
pub struct RecordWriter {
    path: PathBuf,
    sink: Sink,
}

impl RecordWriter {
    /// Creates a file of records, replacing one of the same name.
    ///
    /// # Errors
    /// A file system error, such as PERMISSION_DENIED.
    pub fn create(path: &Path, compression: RecordCompression) -> Result<RecordWriter> {
        let file = BufWriter::new(files::create(path).map_err(|e| io_error(path, &e))?);
        Ok(RecordWriter {
            path: path.to_path_buf(),
            sink: match compression {
                RecordCompression::None => Sink::None(file),
                RecordCompression::Zlib => {
                    Sink::Zlib(ZlibEncoder::new(file, Compression::default()))
                }
                RecordCompression::Gzip => Sink::Gzip(GzEncoder::new(file, Compression::default())),
            },
        })
    }

    /// Appends a record.
    ///
    /// # Errors
    /// A file system error, such as RESOURCE_EXHAUSTED if the disk is full.
    pub fn write(&mut self, record: &[u8]) -> Result<()> {
        let length = (record.len() as u64).to_le_bytes();
        let sum = |bytes: &[u8]| mask(crc32c::crc32c(bytes)).to_le_bytes();
        let to = self.sink.writer();
        let written = to
            .write_all(&length)
            .and_then(|()| to.write_all(&sum(&length)))
            .and_then(|()| to.write_all(record))
            .and_then(|()| to.write_all(&sum(record)));
        written.map_err(|e| io_error(&self.path, &e))
    }

    /// Passes everything written so far to the system.
    ///
    /// # Errors
    /// A file system error, such as RESOURCE_EXHAUSTED if the disk is full.
    pub fn flush(&mut self) -> Result<()> {
        let flushed = self.sink.writer().flush();
        flushed.map_err(|e| io_error(&self.path, &e))
    }

    /// Writes the end of the file and waits until it is on disk.
    ///
    /// # Errors
    /// A file system error, such as RESOURCE_EXHAUSTED if the disk is full.
    pub fn finish(self) -> Result<()> {
        let file = match self.sink {
            Sink::None(w) => Ok(w),
            Sink::Zlib(w) => w.finish(),
            Sink::Gzip(w) => w.finish(),
        };
        let done = file.and_then(|mut w| w.flush().and_then(|()| w.get_mut().sync_all()));
        done.map_err(|e| io_error(&self.path, &e))
    }
}
