//! Decoders of the input encodings of TensorFlow's Unicode ops, which uses ICU's converters.
//!
//! `encoding_rs` has the tables of the legacy encodings. It follows the Encoding Standard, which differs
//! from ICU in a few bytes (see `exception`), in characters for private use, and in how many bytes an
//! invalid sequence has.

mod scsu;
mod shifted;
mod single;

use encoding_rs::{DecoderResult, Encoding};

/// One character of a text, or one sequence of bytes that is not a character.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Decoded {
    pub(crate) code_point: u32,
    /// The bytes that it took.
    pub(crate) len: usize,
    pub(crate) is_error: bool,
}

/// The code point of bytes that are not a character.
const REPLACEMENT: u32 = 0xFFFD;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    Big,
    Little,
    /// Big unless a byte order mark says otherwise.
    Marked,
}

/// An input encoding.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Charset {
    Utf8,
    Utf16(Order),
    Utf32(Order),
    Ascii,
    Latin1,
    Latin5,
    Legacy(&'static Encoding),
    /// Two bytes of the upper half for each character; the encoding has more than those.
    Euc(&'static Encoding),
    Single(&'static single::Table),
    Utf7,
    Hz,
    Scsu,
}

/// Names without punctuation, in lower case.
const NAMES: &[(&[&str], Charset)] = &[
    (
        &["utf8", "unicode11utf8", "cp1208", "ibm1208"],
        Charset::Utf8,
    ),
    (
        &["utf16", "iso10646ucs2", "ucs2", "unicode", "csunicode"],
        Charset::Utf16(Order::Marked),
    ),
    (
        &["utf16be", "xutf16be", "unicodebigunmarked"],
        Charset::Utf16(Order::Big),
    ),
    (
        &["utf16le", "xutf16le", "unicodelittleunmarked"],
        Charset::Utf16(Order::Little),
    ),
    (
        &["utf32", "iso10646ucs4", "ucs4", "csucs4"],
        Charset::Utf32(Order::Marked),
    ),
    (&["utf32be"], Charset::Utf32(Order::Big)),
    (&["utf32le"], Charset::Utf32(Order::Little)),
    (
        &[
            "usascii", "ascii", "ascii7", "iso646us", "us", "csascii", "ibm367", "cp367",
        ],
        Charset::Ascii,
    ),
    (
        &[
            "iso88591",
            "latin1",
            "l1",
            "88591",
            "ibm819",
            "cp819",
            "csisolatin1",
        ],
        Charset::Latin1,
    ),
    (
        &["iso88599", "latin5", "l5", "88599", "ibm920", "cp920"],
        Charset::Latin5,
    ),
    (
        &["iso88592", "latin2", "l2", "88592"],
        Charset::Legacy(encoding_rs::ISO_8859_2),
    ),
    (
        &["iso88593", "latin3", "l3", "88593"],
        Charset::Legacy(encoding_rs::ISO_8859_3),
    ),
    (
        &["iso88594", "latin4", "l4", "88594"],
        Charset::Legacy(encoding_rs::ISO_8859_4),
    ),
    (
        &["iso88595", "cyrillic", "88595"],
        Charset::Legacy(encoding_rs::ISO_8859_5),
    ),
    (
        &["iso88596", "arabic", "88596"],
        Charset::Legacy(encoding_rs::ISO_8859_6),
    ),
    (
        &["iso88597", "greek", "greek8", "88597"],
        Charset::Legacy(encoding_rs::ISO_8859_7),
    ),
    (
        &["iso88598", "hebrew", "88598"],
        Charset::Legacy(encoding_rs::ISO_8859_8),
    ),
    (
        &["iso885910", "latin6", "l6"],
        Charset::Legacy(encoding_rs::ISO_8859_10),
    ),
    (
        &["iso885913", "885913"],
        Charset::Legacy(encoding_rs::ISO_8859_13),
    ),
    (
        &["iso885914", "latin8", "l8"],
        Charset::Legacy(encoding_rs::ISO_8859_14),
    ),
    (
        &["iso885915", "latin9", "l9", "885915"],
        Charset::Legacy(encoding_rs::ISO_8859_15),
    ),
    (
        &["windows1250", "cp1250"],
        Charset::Legacy(encoding_rs::WINDOWS_1250),
    ),
    (
        &["windows1251", "cp1251"],
        Charset::Legacy(encoding_rs::WINDOWS_1251),
    ),
    (
        &["windows1252", "cp1252"],
        Charset::Legacy(encoding_rs::WINDOWS_1252),
    ),
    (
        &["windows1253", "cp1253"],
        Charset::Legacy(encoding_rs::WINDOWS_1253),
    ),
    (
        &["windows1254", "cp1254"],
        Charset::Legacy(encoding_rs::WINDOWS_1254),
    ),
    (
        &["windows1255", "cp1255"],
        Charset::Legacy(encoding_rs::WINDOWS_1255),
    ),
    (
        &["windows1256", "cp1256"],
        Charset::Legacy(encoding_rs::WINDOWS_1256),
    ),
    (
        &["windows1257", "cp1257"],
        Charset::Legacy(encoding_rs::WINDOWS_1257),
    ),
    (
        &["windows1258", "cp1258"],
        Charset::Legacy(encoding_rs::WINDOWS_1258),
    ),
    (
        &["windows874", "tis620", "cp874"],
        Charset::Legacy(encoding_rs::WINDOWS_874),
    ),
    (
        &["ibm866", "cp866", "866"],
        Charset::Legacy(encoding_rs::IBM866),
    ),
    (
        &["koi8r", "koi8", "cskoi8r"],
        Charset::Legacy(encoding_rs::KOI8_R),
    ),
    (&["koi8u"], Charset::Legacy(encoding_rs::KOI8_U)),
    (
        &["macintosh", "mac", "macroman"],
        Charset::Legacy(encoding_rs::MACINTOSH),
    ),
    (
        &["xmaccyrillic", "maccyrillic", "maccy"],
        Charset::Legacy(encoding_rs::X_MAC_CYRILLIC),
    ),
    (
        &[
            "shiftjis",
            "sjis",
            "mskanji",
            "xsjis",
            "windows31j",
            "cp932",
            "windows932",
            "cp943c",
        ],
        Charset::Legacy(encoding_rs::SHIFT_JIS),
    ),
    (
        &["eucjp", "xeucjp", "eucjis"],
        Charset::Euc(encoding_rs::EUC_JP),
    ),
    (
        &["gbk", "cp936", "windows936"],
        Charset::Legacy(encoding_rs::GBK),
    ),
    (&["gb2312", "euccn"], Charset::Euc(encoding_rs::GBK)),
    (&["utf7"], Charset::Utf7),
    (&["scsu"], Charset::Scsu),
    (&["hz", "hzgb2312"], Charset::Hz),
    (
        &["iso2022jp", "csiso2022jp"],
        Charset::Legacy(encoding_rs::ISO_2022_JP),
    ),
    (
        &[
            "windows949",
            "ksc56011987",
            "ksc56011989",
            "csksc56011987",
            "korean",
            "isoir149",
        ],
        Charset::Legacy(encoding_rs::EUC_KR),
    ),
    (
        &["gb18030", "windows54936"],
        Charset::Legacy(encoding_rs::GB18030),
    ),
    (
        &["big5", "windows950", "cp950"],
        Charset::Legacy(encoding_rs::BIG5),
    ),
    (&["euckr", "ksc5601"], Charset::Euc(encoding_rs::EUC_KR)),
];

impl Charset {
    /// Returns the encoding of that name; punctuation and case do not matter.
    pub(crate) fn named(name: &str) -> Option<Charset> {
        let (mut kept, mut is_number) = (String::new(), false);
        for (i, c) in name.char_indices() {
            let next = name.as_bytes().get(i + 1);
            // Nor do zeros before a number.
            let is_kept = c != '0' || is_number || !next.is_some_and(u8::is_ascii_digit);
            if is_kept && c.is_ascii_alphanumeric() {
                kept.push(c.to_ascii_lowercase());
            }
            is_number = is_kept && c.is_ascii_digit();
        }
        let found = NAMES.iter().find(|(names, _)| names.contains(&&kept[..]));
        match found {
            Some((_, charset)) => Some(*charset),
            None => single::named(&kept).map(Charset::Single),
        }
    }

    /// Calls `each` with the characters of `text`, in order, until it fails.
    pub(crate) fn decode<E>(
        self,
        text: &[u8],
        mut each: impl FnMut(Decoded) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Charset::Utf8 => utf8(text, each),
            Charset::Utf16(order) => utf16(text, order, each),
            Charset::Utf32(order) => utf32(text, order, each),
            Charset::Legacy(encoding) => legacy(encoding, text, each),
            Charset::Euc(encoding) => euc(encoding, text, each),
            Charset::Utf7 => shifted::utf7(text, each),
            Charset::Hz => shifted::hz(text, each),
            Charset::Scsu => scsu::scsu(text, each),
            Charset::Single(table) => text.iter().try_for_each(|&b| {
                each(match table[usize::from(b)] {
                    REPLACEMENT => error(1),
                    code_point => character(code_point, 1),
                })
            }),
            Charset::Ascii | Charset::Latin1 | Charset::Latin5 => text.iter().try_for_each(|&b| {
                each(match self {
                    Charset::Ascii if b >= 0x80 => error(1),
                    Charset::Latin5 => character(latin5(b), 1),
                    _ => character(b.into(), 1),
                })
            }),
        }
    }
}

fn character(code_point: u32, len: usize) -> Decoded {
    Decoded {
        code_point,
        len,
        is_error: false,
    }
}

fn error(len: usize) -> Decoded {
    Decoded {
        code_point: REPLACEMENT,
        len,
        is_error: true,
    }
}

/// Passes on what ICU makes of `len` bytes at the end that do not form a character: the noncharacter U+FFFF.
fn decoded_to<E>(len: usize, each: &mut impl FnMut(Decoded) -> Result<(), E>) -> Result<(), E> {
    match len {
        0 => Ok(()),
        len => each(character(0xffff, len)),
    }
}

/// ISO 8859-9, which differs from Latin-1 in six letters.
fn latin5(b: u8) -> u32 {
    match b {
        0xd0 => 0x11e,
        0xdd => 0x130,
        0xde => 0x15e,
        0xf0 => 0x11f,
        0xfd => 0x131,
        0xfe => 0x15f,
        _ => b.into(),
    }
}

fn utf8<E>(text: &[u8], mut each: impl FnMut(Decoded) -> Result<(), E>) -> Result<(), E> {
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            each(character(c.into(), c.len_utf8()))?;
        }
        if !chunk.invalid().is_empty() {
            each(error(chunk.invalid().len()))?;
        }
    }
    Ok(())
}

fn utf16<E>(
    text: &[u8],
    order: Order,
    mut each: impl FnMut(Decoded) -> Result<(), E>,
) -> Result<(), E> {
    let (is_little, mut at) = match (order, text) {
        (Order::Marked, [0xff, 0xfe, ..]) => (true, 2),
        (Order::Marked, [0xfe, 0xff, ..]) => (false, 2),
        _ => (order == Order::Little, 0),
    };
    // The mark counts as part of the first character.
    let mut mark = at;
    let unit = |at: usize| -> Option<u32> {
        let bytes = [*text.get(at)?, *text.get(at + 1)?];
        Some(match is_little {
            true => u16::from_le_bytes(bytes).into(),
            false => u16::from_be_bytes(bytes).into(),
        })
    };
    while at < text.len() {
        let mut decoded = match (unit(at), unit(at + 2)) {
            (None, _) => error(1),
            (Some(high @ 0xd800..=0xdbff), Some(low @ 0xdc00..=0xdfff)) => {
                character(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00), 4)
            }
            // A pair that the end cut.
            (Some(0xd800..=0xdbff), None) => error(text.len() - at),
            (Some(0xd800..=0xdfff), _) => error(2),
            (Some(unit), _) => character(unit, 2),
        };
        at += decoded.len;
        decoded.len += std::mem::take(&mut mark);
        each(decoded)?;
    }
    Ok(())
}

fn utf32<E>(
    text: &[u8],
    order: Order,
    mut each: impl FnMut(Decoded) -> Result<(), E>,
) -> Result<(), E> {
    let (is_little, mut mark) = match (order, text) {
        (Order::Marked, [0xff, 0xfe, 0, 0, ..]) => (true, 4),
        (Order::Marked, [0, 0, 0xfe, 0xff, ..]) => (false, 4),
        _ => (order == Order::Little, 0),
    };
    for part in text[mark..].chunks(4) {
        let value = <[u8; 4]>::try_from(part).map(|bytes| match is_little {
            true => u32::from_le_bytes(bytes),
            false => u32::from_be_bytes(bytes),
        });
        let mut decoded = match value.ok().and_then(char::from_u32) {
            Some(c) => character(c.into(), 4),
            None => error(part.len()),
        };
        decoded.len += std::mem::take(&mut mark);
        each(decoded)?;
    }
    Ok(())
}

/// What ICU makes of a byte that the Encoding Standard has for something else, or for nothing.
fn exception(encoding: &'static Encoding, byte: u8) -> Option<u32> {
    let ibm = encoding == encoding_rs::IBM866 || encoding == encoding_rs::SHIFT_JIS;
    let is = |other: &'static Encoding| encoding == other;
    Some(match byte {
        // Control characters in IBM's order.
        0x1a if ibm => 0x1c,
        0x1c if ibm => 0x7f,
        0x7f if ibm => 0x1a,
        0x80 if is(encoding_rs::BIG5) => 0x80,
        0xff if is(encoding_rs::BIG5) => 0xf8f8,
        0xff if is(encoding_rs::GBK) => 0xf8f5,
        0xaa if is(encoding_rs::WINDOWS_1253) => 0xaa,
        0xdb..=0xde if is(encoding_rs::WINDOWS_874) => 0xf8c1 + u32::from(byte - 0xdb),
        0xfc..=0xff if is(encoding_rs::WINDOWS_874) => 0xf8c5 + u32::from(byte - 0xfc),
        0xae if is(encoding_rs::KOI8_U) => 0x255d,
        0xbe if is(encoding_rs::KOI8_U) => 0x256c,
        _ => return None,
    })
}

/// Returns a character of GB 2312.
fn gb2312(bytes: [u8; 2]) -> Option<u32> {
    match bytes {
        [0xa1, 0xa4] => Some(0x30fb),
        [0xa1, 0xaa] => Some(0x2015),
        _ => {
            let (decoded, is_bad) = encoding_rs::GBK.decode_without_bom_handling(&bytes);
            let mut characters = decoded.chars();
            let c = characters
                .next()
                .filter(|_| characters.next().is_none() && !is_bad);
            c.map(u32::from)
        }
    }
}

/// Decodes characters of two bytes from `0xa1` on, or of three in Japanese; control characters of
/// the upper half are themselves.
fn euc<E>(
    encoding: &'static Encoding,
    text: &[u8],
    mut each: impl FnMut(Decoded) -> Result<(), E>,
) -> Result<(), E> {
    let is_japanese = encoding == encoding_rs::EUC_JP;
    let mut rest = text;
    while let Some(&lead) = rest.first() {
        let n_bytes = match lead {
            0..0x80 => 1,
            0x8e if is_japanese => 2,
            0x8f if is_japanese => 3,
            0x80..0xa0 => 1,
            _ => 2,
        };
        let is_upper = |b: &u8| (0xa1..0xff).contains(b);
        let character_bytes = rest
            .get(..n_bytes)
            .filter(|bytes| bytes[1..].iter().all(is_upper));
        let decoded = match character_bytes {
            Some([byte]) => character((*byte).into(), 1),
            Some(&[lead, trail])
                if encoding == encoding_rs::GBK && !matches!(lead, 0xa0 | 0xff) =>
            {
                match gb2312([lead, trail]) {
                    Some(c) => character(c, 2),
                    None => error(2),
                }
            }
            Some(bytes) if lead != 0xa0 && lead != 0xff => {
                let (decoded, is_bad) = encoding.decode_without_bom_handling(bytes);
                let mut characters = decoded.chars();
                match (characters.next(), characters.next(), is_bad) {
                    (Some(c), None, false) => character(c.into(), n_bytes),
                    _ => error(n_bytes),
                }
            }
            _ => error(1),
        };
        rest = rest.get(decoded.len..).unwrap_or_default();
        each(decoded)?;
    }
    Ok(())
}

/// Feeds the decoder a byte at a time to learn how many each character takes.
fn legacy<E>(
    encoding: &'static Encoding,
    text: &[u8],
    mut each: impl FnMut(Decoded) -> Result<(), E>,
) -> Result<(), E> {
    let mut decoder = encoding.new_decoder_without_bom_handling();
    let (mut at, mut pending) = (0, 0);
    let mut units = [0u16; 8];
    while at < text.len() {
        // Only a byte at the start of a character can be an exception.
        if let Some(c) = exception(encoding, text[at]).filter(|_| pending == 0) {
            each(character(c, 1))?;
            at += 1;
            continue;
        }
        let is_last = at + 1 == text.len();
        let (result, n_read, n_written) =
            decoder.decode_to_utf16_without_replacement(&text[at..at + 1], &mut units, is_last);
        at += n_read;
        pending += n_read;
        let behind = match result {
            DecoderResult::Malformed(_, behind) => usize::from(behind),
            _ => 0,
        };
        let written = units.get(..n_written).unwrap_or_default();
        for c in char::decode_utf16(written.iter().copied()) {
            let len = match result {
                DecoderResult::Malformed(n, _) => pending.saturating_sub(n.into()),
                _ => pending,
            };
            pending -= len;
            each(c.map_or(error(len), |c| character(c.into(), len)))?;
        }
        if let DecoderResult::Malformed(..) = result {
            let len = pending.saturating_sub(behind);
            pending = behind;
            each(error(len))?;
        }
    }
    decoded_to(pending, &mut each)
}
