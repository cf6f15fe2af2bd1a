//! Requests of S3 as bytes, with a signature of version 4 over everything but the content.
//!
//! Requests are signed once before a load, and sent many times. A signature is accepted for 15
//! minutes, which is longer than any load.

use std::{
    net::SocketAddr,
    time::{SystemTime, UNIX_EPOCH},
};

use sha2::{Digest as _, Sha256};

/// The keys that each server is started with.
pub const ACCESS_KEY: &str = "bench-access-key";
/// The secret half.
pub const SECRET_KEY: &str = "bench-secret-key";
const REGION: &str = "us-east-1";
/// The block of SHA-256, which is also the longest key of its HMAC.
const BLOCK_BYTES: usize = 64;

/// Signs requests to one server at one moment.
#[derive(Debug)]
pub struct Signer {
    host: String,
    /// As in `20260102T030405Z`.
    time: String,
    key: [u8; 32],
}

impl Signer {
    /// For requests to `address` within the next minutes.
    pub fn now(address: SocketAddr) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self::at(address, since.map_or(0, |since| since.as_secs()))
    }

    fn at(address: SocketAddr, seconds: u64) -> Self {
        let time = time(seconds);
        let mut key = hmac(
            format!("AWS4{SECRET_KEY}").as_bytes(),
            &time.as_bytes()[..8],
        );
        for part in [REGION, "s3", "aws4_request"] {
            key = hmac(&key, part.as_bytes());
        }
        Self {
            host: address.to_string(),
            time,
            key,
        }
    }

    /// The head of a request for `path`, which has no character that a URL escapes.
    pub fn head(&self, method: &str, path: &str, bytes: usize) -> Vec<u8> {
        let (host, time, date) = (&self.host, &self.time, &self.time[..8]);
        let hash = "UNSIGNED-PAYLOAD";
        let names = "host;x-amz-content-sha256;x-amz-date";
        let canonical = format!(
            "{method}\n{path}\n\nhost:{host}\nx-amz-content-sha256:{hash}\nx-amz-date:{time}\n\n{names}\n{hash}"
        );
        let scope = format!("{date}/{REGION}/s3/aws4_request");
        let digest = hex(&Sha256::digest(canonical.as_bytes()));
        let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{digest}");
        let signature = hex(&hmac(&self.key, text.as_bytes()));
        let length = match method {
            "PUT" => format!("content-length: {bytes}\r\n"),
            _ => String::new(),
        };
        format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nx-amz-date: {time}\r\nx-amz-content-sha256: {hash}\r\n\
             authorization: AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope}, SignedHeaders={names}, Signature={signature}\r\n\
             {length}\r\n"
        )
        .into_bytes()
    }
}

/// HMAC-SHA-256 (RFC 2104).
fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut block = [0; BLOCK_BYTES];
    if key.len() > BLOCK_BYTES {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let padded = |pad: u8| Sha256::new().chain_update(block.map(|byte| byte ^ pad));
    let inner = padded(0x36).chain_update(message).finalize();
    padded(0x5c).chain_update(inner).finalize().into()
}

fn hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(u32::from(half), 16).expect("half a byte");
    let both = |byte: &u8| [digit(byte >> 4), digit(byte & 15)];
    bytes.iter().flat_map(both).collect()
}

/// Seconds since 1970 as S3 writes a time.
fn time(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March end with the day that a leap year adds.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = (from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hmac_agrees_with_rfc_4231() {
        assert_eq!(
            hex(&hmac(b"Jefe", b"what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        let long = hmac(
            &[0xaa; 131],
            b"Test Using Larger Than Block-Size Key - Hash Key First",
        );
        assert_eq!(
            hex(&long),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }

    #[test]
    fn times_are_dates_of_the_calendar() {
        assert_eq!(time(0), "19700101T000000Z");
        assert_eq!(time(951_782_399), "20000228T235959Z");
        assert_eq!(time(951_782_400), "20000229T000000Z");
        assert_eq!(time(1_767_323_045), "20260102T030405Z");
    }
}
