//! Enumerations.

/// The names of an enumeration's values by number; the empty ones do not exist.
pub(super) type Names = &'static [&'static str];

/// The enumerations by the code of their attribute in VHLO.
const ENUMS: &[(u64, Names)] = &[
    (3, &["EQ", "NE", "GE", "GT", "LE", "LT"]),
    (4, &["NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"]),
    (
        5,
        &[
            "API_VERSION_UNSPECIFIED",
            "API_VERSION_ORIGINAL",
            "API_VERSION_STATUS_RETURNING",
            "API_VERSION_STATUS_RETURNING_UNIFIED",
            "API_VERSION_TYPED_FFI",
        ],
    ),
    (7, &["FFT", "IFFT", "RFFT", "IRFFT"]),
    (11, &["DEFAULT", "HIGH", "HIGHEST"]),
    (12, &["DEFAULT", "THREE_FRY", "PHILOX"]),
    (13, &["", "UNIFORM", "NORMAL"]),
    (
        16,
        &["TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"],
    ),
    (19, &["DEFAULT", "HIGHEST", "TOLERANCE"]),
];

/// Returns an enumeration by the code of its attribute.
pub(super) fn names(code: u64) -> Option<Names> {
    let found = ENUMS.iter().find(|(c, _)| *c == code);
    found.map(|(_, names)| *names)
}

/// Returns the name of a value.
pub(super) fn name(names: Names, value: u64) -> Option<&'static str> {
    let name = names.get(usize::try_from(value).ok()?)?;
    Some(*name).filter(|n| !n.is_empty())
}
