//! The subject of a certificate as text: `CN=kafka-1,OU=Brokers,O=Example,C=DE`.
//!
//! ACLs of ZooKeeper's scheme `x509` hold this text, so it is what Java's
//! `X500Principal.getName()` returns: RFC 2253, the last name first, types other than those of the
//! RFC as numbers with their value in hexadecimal.
//!
//! TLS has parsed and verified the certificate before. Bytes that do not parse here have no subject.

use std::fmt::Write as _;

/// The numbers of the types that RFC 2253 names, as they are encoded.
const KEYWORDS: [(&[u8], &str); 9] = [
    (&[0x55, 4, 3], "CN"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 9], "STREET"),
    (
        &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25],
        "DC",
    ),
    (
        &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1],
        "UID",
    ),
];
/// Characters that are escaped everywhere in a value.
const ESCAPED: &str = ",=+<>#;\"\\";

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// The version, which only certificates of version 1 leave out.
const VERSION: u8 = 0xa0;

/// The subject of an X.509 certificate in DER. None: the bytes are none.
pub fn of_subject(certificate: &[u8]) -> Option<String> {
    let mut outer = Der(certificate);
    let mut certificate = Der(outer.next(SEQUENCE)?);
    let mut to_be_signed = Der(certificate.next(SEQUENCE)?);
    if to_be_signed.0.first() == Some(&VERSION) {
        to_be_signed.any()?;
    }
    // The serial number, the algorithm, the issuer and the validity.
    for _ in 0..4 {
        to_be_signed.any()?;
    }
    let mut subject = Der(to_be_signed.next(SEQUENCE)?);
    let mut names = Vec::new();
    while !subject.0.is_empty() {
        names.push(relative(Der(subject.next(SET)?))?);
    }
    names.reverse();
    Some(names.join(","))
}

/// One name, which may have several parts.
fn relative(mut parts: Der<'_>) -> Option<String> {
    let mut texts = Vec::new();
    while !parts.0.is_empty() {
        let mut part = Der(parts.next(SEQUENCE)?);
        let kind = part.next(OBJECT_IDENTIFIER)?;
        let encoded = part.0;
        let (tag, value) = part.any()?;
        let keyword = KEYWORDS.iter().find(|(number, _)| *number == kind);
        texts.push(match (keyword, text(tag, value)) {
            (Some((_, keyword)), Some(value)) => format!("{keyword}={}", escaped(&value)),
            (keyword, _) => {
                let named = keyword.map(|(_, keyword)| (*keyword).to_owned());
                let named = named.or_else(|| dotted(kind))?;
                let mut text = format!("{named}=#");
                for byte in encoded {
                    let _ = write!(text, "{byte:02x}");
                }
                text
            }
        });
    }
    Some(texts.join("+"))
}

/// The text of a value of a string type.
fn text(tag: u8, value: &[u8]) -> Option<String> {
    match tag {
        // UTF-8, printable and IA5: Java replaces what is not valid, too.
        0x0c | 0x13 | 0x16 | 0x1b => Some(String::from_utf8_lossy(value).into_owned()),
        // T61, as everyone reads it: ISO 8859-1.
        0x14 => Some(value.iter().copied().map(char::from).collect()),
        // BMP: UTF-16.
        0x1e => {
            let units = value
                .chunks_exact(2)
                .map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
            Some(String::from_utf16_lossy(&units.collect::<Vec<_>>()))
        }
        _ => None,
    }
}

fn escaped(value: &str) -> String {
    let is_space = |letter| letter == ' ' || letter == '\r';
    let inner = value.trim_matches(is_space);
    let begins = value.len() - value.trim_start_matches(is_space).len();
    let ends = begins + inner.len();
    let mut text = String::with_capacity(value.len());
    for (at, letter) in value.char_indices() {
        let is_at_an_end = at < begins || at >= ends;
        if is_at_an_end || ESCAPED.contains(letter) {
            text.push('\\');
        }
        if letter == '\0' {
            text.push_str("\\00");
        } else {
            text.push(letter);
        }
    }
    text
}

/// An object identifier in digits.
fn dotted(encoded: &[u8]) -> Option<String> {
    let mut numbers = Vec::new();
    let mut number: u64 = 0;
    for byte in encoded {
        number = number.checked_mul(128)? + u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            if numbers.is_empty() {
                let first = (number / 40).min(2);
                numbers.push(first.to_string());
                number -= first * 40;
            }
            numbers.push(std::mem::take(&mut number).to_string());
        }
    }
    Some(numbers.join("."))
}

/// Values in DER, one after the other.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The tag and the content of the next value.
    fn any(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&short, mut rest) = rest.split_first()?;
        let mut length = usize::from(short);
        if short >= 0x80 {
            let digits = usize::from(short & 0x7f);
            // A certificate is far shorter than 16 MiB.
            if !(1..=3).contains(&digits) {
                return None;
            }
            let (bytes, after) = rest.split_at_checked(digits)?;
            length = bytes
                .iter()
                .fold(0, |length, byte| length << 8 | usize::from(*byte));
            rest = after;
        }
        let (value, after) = rest.split_at_checked(length)?;
        self.0 = after;
        Some((tag, value))
    }

    /// The content of the next value, if it has this tag.
    fn next(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (found, value) = self.any()?;
        (found == tag).then_some(value)
    }
}

#[cfg(test)]
mod tests;
