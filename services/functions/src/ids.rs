//! Request ids, and the names under which deployed functions are registered.

use std::fmt;

use ports::Entropy;
use sha2::{Digest as _, Sha256};

/// The prefix of deployed functions among all functions of this process.
pub(crate) const PREFIX: &str = "functions/";

/// The name under which the deployed function `name` is registered.
pub(crate) fn registered_name(name: &str) -> String {
    [PREFIX, name].concat()
}

/// The name that its application uses for the registered function `name`.
pub(crate) fn own_name(name: &str) -> &str {
    name.strip_prefix(PREFIX).unwrap_or(name)
}

pub(crate) fn new_id(entropy: &dyn Entropy) -> String {
    let bits = u128::from(entropy.next_u64()) << 64 | u128::from(entropy.next_u64());
    uuid(bits.to_be_bytes()).to_string()
}

/// The request id of an event that its sender calls `id`: the same text if it can stand in a
/// header, else a digest.
pub(crate) fn request_id(id: &[u8]) -> String {
    match std::str::from_utf8(id) {
        Ok(text) if text.len() <= 64 && !text.is_empty() && text.bytes().all(is_plain) => {
            text.to_owned()
        }
        _ => digest_id(&[id]),
    }
}

/// The request id under which `notified` runs to learn that `failed` gave up on the event `id`. It
/// is the same at every attempt (A3), and differs from the event's own id: under that id, the
/// transactions of `notified` would be taken for those of `failed`.
pub(crate) fn notice_id(notified: &str, failed: &str, id: &str) -> String {
    digest_id(&[notified.as_bytes(), failed.as_bytes(), id.as_bytes()])
}

/// An id from the first 16 bytes of the digest of `parts`. Only the last part may contain a zero
/// byte.
pub(crate) fn digest_id(parts: &[&[u8]]) -> String {
    let digest = Sha256::digest(parts.join(&0));
    let mut bits = [0; 16];
    bits.copy_from_slice(&digest[..16]);
    uuid(bits).to_string()
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte)
}

/// 16 bytes, written as a random UUID (RFC 9562, version 4).
pub fn uuid(mut bits: [u8; 16]) -> impl fmt::Display {
    bits[6] = bits[6] & 0x0f | 0x40;
    bits[8] = bits[8] & 0x3f | 0x80;
    let digits = hexadecimal(&bits);
    [
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..],
    ]
    .join("-")
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}
