//! Signatures of AWS's version 4 in the `Authorization` header of a request, for services other
//! than S3: the SHA-256 of the body is a part of what is signed.
//!
//! No I/O and no clock: callers pass the time. A request is checked in two steps, because its head
//! is there before its body: [`begin`] refuses what no body can mend, and [`Begun::finish`] compares.

use std::fmt::Write as _;

use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderMap, Method, Uri, header};
use sha2::{Digest as _, Sha256};

/// The beginning of a header with such a signature.
pub const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// How far the clocks of a client and a server may differ, in seconds.
const SKEW_S_MAX: u64 = 15 * 60;

/// The keys of the callers.
#[derive(Clone)]
pub struct Keys {
    /// Names the key in each request.
    pub access_key: String,
    /// Signs, and is never sent.
    pub secret_key: String,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no signature, or one of another kind.
    #[error("Missing Authentication Token")]
    Missing,
    /// The header does not have the parts of a signature, or covers too little.
    #[error(
        "The Authorization header is to have Credential, SignedHeaders with host and all x-amz- headers, and Signature"
    )]
    Incomplete,
    /// No such access key.
    #[error("The security token included in the request is invalid.")]
    UnknownKey,
    /// It was signed too long ago, or for later.
    #[error(
        "Signature expired or not yet current: the clocks of client and server may differ by 15 minutes"
    )]
    Expired,
    /// Another key signed it, or something else was signed.
    #[error(
        "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key and signing method. Consult the service documentation for details."
    )]
    Mismatch,
}

/// A signature whose request has no body yet.
#[derive(Clone)]
pub struct Begun {
    /// All lines of the canonical request but the last.
    canonical: String,
    /// The lines of the string to sign but the last.
    to_sign: String,
    key: [u8; 32],
    given: [u8; 32],
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys")
            .field("access_key", &self.access_key)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Begun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Begun").finish_non_exhaustive()
    }
}

/// Checks all but the body. `now` is in seconds since 1970.
///
/// Errors: the signature is of no key, of another time or service, or covers too little.
pub fn begin(
    keys: &Keys,
    service: &str,
    (method, uri, headers): (&Method, &Uri, &HeaderMap),
    now: u64,
) -> Result<Begun, Error> {
    let authorization = one(headers, header::AUTHORIZATION.as_str()).ok_or(Error::Missing)?;
    let fields = authorization
        .strip_prefix(ALGORITHM)
        .ok_or(Error::Missing)?;
    let field = |name: &str| {
        let mut fields = fields.split([',', ' ']);
        fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
    };
    let credential = field("Credential").ok_or(Error::Incomplete)?;
    let signed = field("SignedHeaders").ok_or(Error::Incomplete)?;
    let given = field("Signature")
        .and_then(from_hex)
        .ok_or(Error::Incomplete)?;
    let (access_key, scope) = credential.split_once('/').ok_or(Error::Incomplete)?;
    let parts: Vec<_> = scope.split('/').collect();
    let [day, region, of_service, "aws4_request"] = parts[..] else {
        return Err(Error::Incomplete);
    };
    let date = one(headers, "x-amz-date").ok_or(Error::Incomplete)?;
    let signed_at = seconds(date).ok_or(Error::Incomplete)?;
    if access_key != keys.access_key {
        return Err(Error::UnknownKey);
    }
    if signed_at.abs_diff(now) > SKEW_S_MAX {
        return Err(Error::Expired);
    }
    if !date.starts_with(day) || of_service != service {
        return Err(Error::Mismatch);
    }
    let canonical = canonical(method, uri, headers, signed)?;
    let first = hmac(format!("AWS4{}", keys.secret_key).as_bytes(), day);
    let key = [region, service, "aws4_request"].into_iter();
    Ok(Begun {
        canonical,
        to_sign: format!("{ALGORITHM}\n{date}\n{scope}\n"),
        key: key.fold(first, |key, part| hmac(&key, part)),
        given,
    })
}

impl Begun {
    /// Checks the signature with this body.
    ///
    /// Errors: [`Error::Mismatch`].
    pub fn finish(&self, body: &[u8]) -> Result<(), Error> {
        let canonical = format!("{}\n{}", self.canonical, hex(&Sha256::digest(body)));
        let hashed = hex(&Sha256::digest(canonical));
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("any length is a key");
        mac.update(self.to_sign.as_bytes());
        mac.update(hashed.as_bytes());
        // Takes as long for any difference.
        mac.verify_slice(&self.given).map_err(|_| Error::Mismatch)
    }
}

/// The canonical request up to its signed headers.
fn canonical(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    signed: &str,
) -> Result<String, Error> {
    let names: Vec<_> = signed.split(';').collect();
    let mut must = headers.keys().map(http::HeaderName::as_str);
    let is_covered = |name: &str| {
        let matters = name == "host" || name.starts_with("x-amz-");
        !matters || names.contains(&name)
    };
    if !headers.contains_key(header::HOST) || !must.all(is_covered) {
        return Err(Error::Incomplete);
    }
    let mut text = format!("{method}\n");
    for byte in uri.path().bytes() {
        if byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // What is encoded in the path is encoded once more.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    let query = uri.query().unwrap_or_default();
    let mut query: Vec<_> = query.split('&').filter(|pair| !pair.is_empty()).collect();
    query.sort_unstable();
    let _ = writeln!(text, "\n{}", query.join("&"));
    for name in &names {
        let values = headers.get_all(*name).iter();
        let values: Option<Vec<_>> = values.map(|value| value.to_str().ok()).collect();
        let values = values.filter(|values| !values.is_empty());
        let values = values.ok_or(Error::Incomplete)?;
        let values = values.iter().map(|value| {
            let words: Vec<_> = value.split(' ').filter(|word| !word.is_empty()).collect();
            words.join(" ")
        });
        let _ = writeln!(text, "{name}:{}", values.collect::<Vec<_>>().join(","));
    }
    let _ = write!(text, "\n{signed}");
    Ok(text)
}

fn one<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

fn hmac(key: &[u8], text: &str) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length is a key");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Seconds since 1970 of `20150830T123600Z`.
fn seconds(date: &str) -> Option<u64> {
    let digits = date.as_bytes();
    let is_date = digits.len() == 16 && digits[8] == b'T' && digits[15] == b'Z';
    let number = |from: usize, to: usize| -> Option<u64> {
        let digits = date.get(from..to)?;
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse().ok()).flatten()
    };
    let (year, month, day) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
    let (hour, minute, second) = (number(9, 11)?, number(11, 13)?, number(13, 15)?);
    if !is_date || year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years from March on, so that the day that may be missing is the last.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    // 719,468 days lie between March of the year 0 and 1970.
    Some((days - 719_468) * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests;
