//! The five checksum algorithms of S3: by name, by header, over content, and over parts.
//!
//! The service stores checksums as a map from header to value. `x-amz-checksum-type` is in the same
//! map, and for an upload in parts `x-amz-checksum-algorithm` as well.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use s3s::{S3Error, checksum::ChecksumHasher, crypto::Checksum as _, dto};

use crate::{
    crc,
    errors::{Refusal, invalid_request},
};

/// Checksums by their headers.
pub(crate) type Sums = BTreeMap<String, String>;

/// The key of the checksum type in [`Sums`].
pub(crate) const TYPE: &str = "x-amz-checksum-type";
/// The key of an upload's algorithm in [`Sums`].
pub(crate) const ALGORITHM: &str = "x-amz-checksum-algorithm";

/// An algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
}

impl Algorithm {
    pub(crate) const ALL: [Self; 5] = [
        Self::Crc32,
        Self::Crc32c,
        Self::Crc64Nvme,
        Self::Sha1,
        Self::Sha256,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "CRC32",
            Self::Crc32c => "CRC32C",
            Self::Crc64Nvme => "CRC64NVME",
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
        }
    }

    pub(crate) fn header(self) -> &'static str {
        match self {
            Self::Crc32 => "x-amz-checksum-crc32",
            Self::Crc32c => "x-amz-checksum-crc32c",
            Self::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Self::Sha1 => "x-amz-checksum-sha1",
            Self::Sha256 => "x-amz-checksum-sha256",
        }
    }

    /// Errors: `InvalidRequest` for an unknown name.
    pub(crate) fn parse(name: &str) -> Result<Self, S3Error> {
        let found = Self::ALL
            .into_iter()
            .find(|one| one.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| {
            invalid_request(format!(
                "Checksum algorithm {name:?} is unknown. Use CRC32, CRC32C, CRC64NVME, SHA1 or SHA256."
            ))
        })
    }

    pub(crate) fn of_header(header: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|one| one.header().eq_ignore_ascii_case(header.trim()))
    }

    /// The algorithm that an object's or upload's checksums are of.
    pub(crate) fn of(sums: &Sums) -> Option<Self> {
        if let Some(name) = sums.get(ALGORITHM) {
            return Self::parse(name).ok();
        }
        Self::ALL
            .into_iter()
            .find(|one| sums.contains_key(one.header()))
    }

    fn digest_bytes(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Crc64Nvme => 8,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    /// The reflected polynomial of a CRC.
    fn polynomial(self) -> Option<crc::Polynomial> {
        match self {
            Self::Crc32 => Some(crc::CRC32),
            Self::Crc32c => Some(crc::CRC32C),
            Self::Crc64Nvme => Some(crc::CRC64_NVME),
            Self::Sha1 | Self::Sha256 => None,
        }
    }

    fn dto(self) -> dto::ChecksumAlgorithm {
        dto::ChecksumAlgorithm::from_static(self.name())
    }
}

/// A checksum in progress.
pub(crate) struct Hasher {
    algorithm: Algorithm,
    inner: ChecksumHasher,
}

impl Hasher {
    pub(crate) fn new(algorithm: Algorithm) -> Self {
        let mut inner = ChecksumHasher::default();
        match algorithm {
            Algorithm::Crc32 => inner.crc32 = Some(s3s::crypto::Crc32::new()),
            Algorithm::Crc32c => inner.crc32c = Some(s3s::crypto::Crc32c::new()),
            Algorithm::Crc64Nvme => inner.crc64nvme = Some(s3s::crypto::Crc64Nvme::new()),
            Algorithm::Sha1 => inner.sha1 = Some(s3s::crypto::Sha1::new()),
            Algorithm::Sha256 => inner.sha256 = Some(s3s::crypto::Sha256::new()),
        }
        Self { algorithm, inner }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.inner.update(bytes);
    }

    /// The checksum in base64.
    pub(crate) fn finish(self) -> String {
        let sums = self.inner.finalize();
        let sum = match self.algorithm {
            Algorithm::Crc32 => sums.checksum_crc32,
            Algorithm::Crc32c => sums.checksum_crc32c,
            Algorithm::Crc64Nvme => sums.checksum_crc64nvme,
            Algorithm::Sha1 => sums.checksum_sha1,
            Algorithm::Sha256 => sums.checksum_sha256,
        };
        sum.unwrap_or_default()
    }

    pub(crate) fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

/// How the checksum of an object in parts is made from those of its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Composite,
    FullObject,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Composite => "COMPOSITE",
            Self::FullObject => "FULL_OBJECT",
        }
    }

    /// The kind that a client asked for, or the default of the algorithm.
    ///
    /// Errors: `InvalidRequest` if the algorithm cannot do it.
    pub(crate) fn chosen(algorithm: Algorithm, asked: Option<&str>) -> Result<Self, S3Error> {
        let refused = || {
            let name = algorithm.name();
            invalid_request(format!(
                "The checksum type cannot be used with the {name} algorithm."
            ))
        };
        let is_crc = algorithm.polynomial().is_some();
        match asked {
            None if algorithm == Algorithm::Crc64Nvme => Ok(Self::FullObject),
            None => Ok(Self::Composite),
            Some("FULL_OBJECT") if is_crc => Ok(Self::FullObject),
            Some("COMPOSITE") if algorithm != Algorithm::Crc64Nvme => Ok(Self::Composite),
            Some(_) => Err(refused()),
        }
    }
}

/// The checksum of an object from those of its parts, in base64, with the sizes of the parts.
///
/// Errors: `InvalidPart` if a part's checksum is not one of the algorithm.
pub(crate) fn of_parts(
    algorithm: Algorithm,
    kind: Kind,
    parts: &[(String, u64)],
) -> Result<String, S3Error> {
    let digests = parts
        .iter()
        .map(|(sum, _)| decode(algorithm, sum))
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| Refusal::bad("InvalidPart", "A part has no checksum of the upload."))?;
    let polynomial = algorithm.polynomial();
    if let (Kind::FullObject, Some(polynomial)) = (kind, polynomial) {
        let width = algorithm.digest_bytes();
        let combined = digests.iter().zip(parts).fold(0, |sum, (digest, part)| {
            polynomial.combine(sum, big_endian(digest), part.1)
        });
        return Ok(BASE64_STANDARD.encode(&combined.to_be_bytes()[8 - width..]));
    }
    let mut hasher = Hasher::new(algorithm);
    for digest in &digests {
        hasher.update(digest);
    }
    Ok(format!("{}-{}", hasher.finish(), parts.len()))
}

fn big_endian(digest: &[u8]) -> u64 {
    digest
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn decode(algorithm: Algorithm, sum: &str) -> Option<Vec<u8>> {
    let digest = BASE64_STANDARD.decode(sum).ok()?;
    (digest.len() == algorithm.digest_bytes()).then_some(digest)
}

/// Checks the form of a checksum that a client sent.
///
/// Errors: `InvalidRequest`.
pub(crate) fn check_form(algorithm: Algorithm, sum: &str) -> Result<(), S3Error> {
    if decode(algorithm, sum).is_some() {
        return Ok(());
    }
    let header = algorithm.header();
    Err(invalid_request(format!(
        "Value for {header} header is invalid."
    )))
}

/// Checks a `Content-MD5`, if there is one, against the MD5 of the content.
///
/// Errors: `InvalidDigest`, `BadDigest`.
pub(crate) fn check_md5(claimed: Option<&str>, md5: [u8; 16]) -> Result<(), Refusal> {
    let Some(claimed) = claimed else {
        return Ok(());
    };
    match BASE64_STANDARD.decode(claimed) {
        Ok(digest) if digest == md5 => Ok(()),
        Ok(digest) if digest.len() == md5.len() => Err(bad_digest("Content-MD5")),
        _ => Err(Refusal::bad(
            "InvalidDigest",
            "The Content-MD5 you specified is not valid.",
        )),
    }
}

/// The content has another checksum than its client sent.
pub(crate) fn bad_digest(header: &str) -> Refusal {
    let message = format!("The {header} you specified did not match what we received.");
    Refusal::bad("BadDigest", message)
}

/// The algorithms of stored checksums, as a list shows them.
pub(crate) fn algorithms(sums: &Sums) -> Option<dto::ChecksumAlgorithm> {
    Algorithm::of(sums).map(Algorithm::dto)
}

/// The stored type.
pub(crate) fn kind(sums: &Sums) -> Option<dto::ChecksumType> {
    sums.get(TYPE)
        .map(|name| dto::ChecksumType::from(name.clone()))
}

/// The checksums in the fields of a request.
macro_rules! sums_of {
    ($dto:expr) => {
        $crate::checksums::collect([
            $dto.checksum_crc32.as_ref(),
            $dto.checksum_crc32c.as_ref(),
            $dto.checksum_crc64nvme.as_ref(),
            $dto.checksum_sha1.as_ref(),
            $dto.checksum_sha256.as_ref(),
        ])
    };
}

/// Sets the fields of a response.
macro_rules! set_sums {
    ($dto:expr, $sums:expr) => {{
        use $crate::checksums::Algorithm;
        let sums: &$crate::checksums::Sums = $sums;
        $dto.checksum_crc32 = sums.get(Algorithm::Crc32.header()).cloned();
        $dto.checksum_crc32c = sums.get(Algorithm::Crc32c.header()).cloned();
        $dto.checksum_crc64nvme = sums.get(Algorithm::Crc64Nvme.header()).cloned();
        $dto.checksum_sha1 = sums.get(Algorithm::Sha1.header()).cloned();
        $dto.checksum_sha256 = sums.get(Algorithm::Sha256.header()).cloned();
    }};
}
pub(crate) use {set_sums, sums_of};

/// Checksums in the order of [`Algorithm::ALL`], by their headers.
pub(crate) fn collect(fields: [Option<&String>; 5]) -> Sums {
    let named = Algorithm::ALL.into_iter().zip(fields);
    named
        .filter_map(|(one, sum)| Some((one.header().to_owned(), sum?.clone())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(algorithm: Algorithm, bytes: &[u8]) -> String {
        let mut hasher = Hasher::new(algorithm);
        hasher.update(bytes);
        hasher.finish()
    }

    #[test]
    fn the_check_values_of_the_algorithms_are_the_published_ones() {
        let values = [
            (Algorithm::Crc32, "y/Q5Jg=="),
            (Algorithm::Crc32c, "4waSgw=="),
            (Algorithm::Crc64Nvme, "rosUhgp5mIg="),
            (Algorithm::Sha1, "98O8HYCOBHMq32eZZczDTKeuNEE="),
            (
                Algorithm::Sha256,
                "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=",
            ),
        ];
        for (algorithm, value) in values {
            assert_eq!(sum(algorithm, b"123456789"), value, "{algorithm:?}");
        }
    }

    #[test]
    fn the_full_checksum_of_parts_is_that_of_their_concatenation() {
        for algorithm in [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64Nvme] {
            let parts = [&b"first "[..], b"", b"second and longer "]
                .map(|part| (sum(algorithm, part), part.len() as u64));
            let whole = sum(algorithm, b"first second and longer ");
            let combined = of_parts(algorithm, Kind::FullObject, &parts).expect("parts");
            assert_eq!(combined, whole, "{algorithm:?}");
        }
    }

    #[test]
    fn a_composite_checksum_is_of_the_digests_with_their_count() {
        let parts = [b"one", b"two"].map(|part| (sum(Algorithm::Sha256, part), 3));
        let digests = parts
            .iter()
            .flat_map(|(sum, _)| BASE64_STANDARD.decode(sum).expect("base64"))
            .collect::<Vec<_>>();
        let expected = format!("{}-2", sum(Algorithm::Sha256, &digests));
        let composite = of_parts(Algorithm::Sha256, Kind::Composite, &parts).expect("parts");
        assert_eq!(composite, expected);
    }

    #[test]
    fn a_type_that_an_algorithm_cannot_do_is_refused() {
        assert!(Kind::chosen(Algorithm::Sha1, Some("FULL_OBJECT")).is_err());
        assert!(Kind::chosen(Algorithm::Crc64Nvme, Some("COMPOSITE")).is_err());
        assert_eq!(
            Kind::chosen(Algorithm::Crc32, None).expect("a default"),
            Kind::Composite
        );
    }

    #[test]
    fn a_content_md5_of_another_content_is_a_bad_digest_and_a_short_one_is_invalid() {
        let md5 = [7; 16];
        assert!(check_md5(Some(&BASE64_STANDARD.encode(md5)), md5).is_ok());
        let other = check_md5(Some(&BASE64_STANDARD.encode([8; 16])), md5).expect_err("another");
        assert!(other.to_string().starts_with("BadDigest"));
        let short = check_md5(Some("AAAA"), md5).expect_err("short");
        assert!(short.to_string().starts_with("InvalidDigest"));
    }
}
