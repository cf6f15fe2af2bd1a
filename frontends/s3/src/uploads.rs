//! Uploads in parts.

use memory::model::{NamedPart, PART_NUMBER_MAX, Upload, UploadId, UploadedPart};
use s3s::{
    S3Error, S3Request, S3Result,
    dto::{
        AbortMultipartUploadInput, AbortMultipartUploadOutput, ChecksumType,
        CompleteMultipartUploadInput, CompleteMultipartUploadOutput, CompletedPart,
        CreateMultipartUploadInput, CreateMultipartUploadOutput, UploadPartInput, UploadPartOutput,
    },
};

use crate::{
    attributes::{given, refuse_unsupported},
    checksums::{self, ALGORITHM, Algorithm, Kind, Sums, check_md5, set_sums, sums_of},
    conditions::{etag, of_write},
    content,
    errors::{Refusal, from_conditional, from_service, invalid_argument, invalid_request},
    lists::url_encoded,
    objects::{check_key, claim, length},
};

/// Parts that are read from the service at once.
const PAGE: usize = 1000;

/// Errors: `NoSuchUpload` for a text that no upload has as its id.
pub(crate) fn id(text: &str) -> Result<UploadId, S3Error> {
    let digits = Some(text).filter(|text| text.len() == 32 && !text.starts_with('+'));
    let id = digits.and_then(|text| u128::from_str_radix(text, 16).ok());
    id.map(UploadId)
        .ok_or_else(|| from_service(memory::Error::NoSuchUpload))
}

pub(crate) fn text(id: UploadId) -> String {
    format!("{:032x}", id.0)
}

/// Errors: `InvalidArgument`.
pub(crate) fn part_number(number: i32) -> Result<u16, S3Error> {
    let number = u16::try_from(number).ok();
    number
        .filter(|number| (1..=PART_NUMBER_MAX).contains(number))
        .ok_or_else(|| {
            invalid_argument("Part number must be an integer between 1 and 10000, inclusive")
        })
}

pub(crate) async fn create(
    service: &memory::Service,
    input: CreateMultipartUploadInput,
) -> S3Result<CreateMultipartUploadOutput> {
    refuse_unsupported!(input)?;
    check_key(&input.key)?;
    let mut attributes = given!(input).into_attributes()?;
    let asked = input.checksum_type.as_ref().map(ChecksumType::as_str);
    let mut output = CreateMultipartUploadOutput::default();
    if let Some(name) = &input.checksum_algorithm {
        let algorithm = Algorithm::parse(name.as_str())?;
        let kind = Kind::chosen(algorithm, asked)?;
        let named = [
            (ALGORITHM, algorithm.name()),
            (checksums::TYPE, kind.name()),
        ];
        attributes.checksums = named
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        output.checksum_algorithm = input.checksum_algorithm;
        output.checksum_type = checksums::kind(&attributes.checksums);
    } else if asked.is_some() {
        return Err(invalid_request(
            "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.",
        ));
    }
    let begun = service.begin_upload(&input.bucket, &input.key, attributes);
    output.upload_id = Some(text(begun.await.map_err(from_service)?));
    output.bucket = Some(input.bucket);
    output.key = Some(input.key);
    Ok(output)
}

/// The upload, without its parts.
pub(crate) async fn find(
    service: &memory::Service,
    bucket: &str,
    key: &str,
    id: UploadId,
) -> Result<Upload, S3Error> {
    let found = service.parts(bucket, key, id, 0, 0).await;
    found.map(|(upload, _)| upload).map_err(from_service)
}

/// The algorithm that parts of the upload must have a checksum of.
///
/// Errors: `InvalidRequest` if the client sent one of another.
pub(crate) fn algorithm(
    upload: &Upload,
    sent: Option<Algorithm>,
) -> Result<Option<Algorithm>, S3Error> {
    match (Algorithm::of(&upload.attributes.checksums), sent) {
        (Some(of_upload), Some(sent)) if of_upload != sent => {
            let (of_upload, sent) = (of_upload.name(), sent.name());
            Err(invalid_request(format!(
                "Checksum Type mismatch occurred, expected checksum Type: {of_upload}, actual checksum Type: {sent}"
            )))
        }
        (of_upload, sent) => Ok(of_upload.or(sent)),
    }
}

pub(crate) async fn part(
    service: &memory::Service,
    request: S3Request<UploadPartInput>,
) -> S3Result<UploadPartOutput> {
    let S3Request {
        input,
        headers,
        trailing_headers,
        ..
    } = request;
    let number = part_number(input.part_number)?;
    let id = id(&input.upload_id)?;
    let bytes = length(input.content_length, &headers)?;
    let asked = input.checksum_algorithm.as_ref();
    let mut claim = claim(sums_of!(input), asked, &headers, trailing_headers)?;
    let (bucket, key) = (input.bucket.as_str(), input.key.as_str());
    let upload = find(service, bucket, key, id).await?;
    claim.algorithm = algorithm(&upload, claim.algorithm)?;
    let (body, computed) = content::body(content::source(input.body), bytes, claim);
    let stored = service.store(bucket, body, Some(bytes)).await;
    let stored = stored.map_err(from_service)?;
    check_md5(input.content_md5.as_deref(), stored.md5())?;
    let committed = service.commit_part(bucket, key, id, number, stored, computed.take());
    let part = committed.await.map_err(from_service)?;
    let mut output = UploadPartOutput {
        e_tag: Some(etag(&part.etag)),
        ..UploadPartOutput::default()
    };
    set_sums!(output, &part.checksums);
    Ok(output)
}

pub(crate) async fn abort(
    service: &memory::Service,
    input: AbortMultipartUploadInput,
) -> S3Result<AbortMultipartUploadOutput> {
    let id = id(&input.upload_id)?;
    let aborted = service.abort_upload(&input.bucket, &input.key, id).await;
    aborted.map_err(from_service)?;
    Ok(AbortMultipartUploadOutput::default())
}

pub(crate) async fn complete(
    service: &memory::Service,
    request: S3Request<CompleteMultipartUploadInput>,
) -> S3Result<CompleteMultipartUploadOutput> {
    let host = request.headers.get(http::header::HOST);
    let host = host.and_then(|host| host.to_str().ok()).unwrap_or_default();
    let path = url_encoded(&request.input.key);
    let peer = request.extensions.get::<listener::Peer>();
    let is_encrypted = peer.is_some_and(|peer| peer.is_encrypted);
    let scheme = if is_encrypted { "https" } else { "http" };
    let location = format!("{scheme}://{host}/{}/{path}", request.input.bucket);
    let mut input = request.input;
    let id = id(&input.upload_id)?;
    let completed = input.multipart_upload.take().and_then(|list| list.parts);
    let completed = completed.unwrap_or_default();
    let named = named(&completed)?;
    let (bucket, key) = (input.bucket.as_str(), input.key.as_str());
    let sums = match find(service, bucket, key, id).await {
        Ok(upload) => sums(service, &input, &upload, &completed).await?,
        // It may be a repeat, which the service recognises.
        Err(error) if error.code().as_str() == "NoSuchUpload" => Sums::new(),
        Err(error) => return Err(error),
    };
    let conditions = of_write(input.if_match.as_ref(), input.if_none_match.as_ref());
    let object = service.complete_upload(bucket, key, id, &named, sums, &conditions);
    let object = object.await.map_err(from_conditional)?;
    let mut output = CompleteMultipartUploadOutput {
        e_tag: Some(etag(&object.etag)),
        location: Some(location),
        checksum_type: checksums::kind(&object.attributes.checksums),
        ..CompleteMultipartUploadOutput::default()
    };
    set_sums!(output, &object.attributes.checksums);
    output.bucket = Some(input.bucket);
    output.key = Some(input.key);
    Ok(output)
}

/// Errors: `MalformedXML` for no part, too many, or one without a number or an ETag;
/// `InvalidPartOrder`.
fn named(parts: &[CompletedPart]) -> Result<Vec<NamedPart>, S3Error> {
    let malformed = || {
        Refusal::bad(
            "MalformedXML",
            "The XML must name between 1 and 10000 parts, each with PartNumber and ETag.",
        )
    };
    if parts.is_empty() || parts.len() > usize::from(PART_NUMBER_MAX) {
        return Err(malformed().into());
    }
    let named = parts.iter().map(|part| {
        let (Some(number), Some(etag)) = (part.part_number, &part.e_tag) else {
            return Err(malformed().into());
        };
        Ok(NamedPart {
            number: part_number(number)?,
            etag: etag.value().to_owned(),
        })
    });
    let named = named.collect::<Result<Vec<_>, S3Error>>()?;
    // The service checks it as well, after the sizes of parts, and S3 before.
    if !named.is_sorted_by(|one, next| one.number < next.number) {
        return Err(from_service(memory::Error::InvalidPartOrder));
    }
    Ok(named)
}

/// The checksums of the whole object, made from those of its parts.
///
/// Errors: `InvalidPart`, `BadDigest`, `InvalidRequest`.
async fn sums(
    service: &memory::Service,
    input: &CompleteMultipartUploadInput,
    upload: &Upload,
    completed: &[CompletedPart],
) -> Result<Sums, S3Error> {
    let stored = &upload.attributes.checksums;
    let claimed = sums_of!(input);
    let Some(algorithm) = Algorithm::of(stored) else {
        return match claimed.keys().next() {
            None => Ok(Sums::new()),
            Some(header) => Err(invalid_request(format!(
                "The upload was created without a checksum algorithm, so {header} cannot be verified."
            ))),
        };
    };
    let kind = match stored.get(checksums::TYPE).map(String::as_str) {
        Some("FULL_OBJECT") => Kind::FullObject,
        _ => Kind::Composite,
    };
    let uploaded = uploaded(service, input, upload.id).await?;
    let parts = completed
        .iter()
        .map(|part| of_part(algorithm, part, &uploaded));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    let sum = checksums::of_parts(algorithm, kind, &parts)?;
    if let Some(claimed) = claimed.get(algorithm.header())
        && *claimed != sum
        // Clients leave out the count of parts.
        && sum.strip_suffix(&format!("-{}", parts.len())) != Some(claimed.as_str())
    {
        return Err(checksums::bad_digest(algorithm.header()).into());
    }
    Ok(Sums::from([
        (algorithm.header().to_owned(), sum),
        (checksums::TYPE.to_owned(), kind.name().to_owned()),
    ]))
}

/// Errors: `InvalidPart` if the part is not there, or the client knows another checksum.
fn of_part(
    algorithm: Algorithm,
    part: &CompletedPart,
    uploaded: &[UploadedPart],
) -> Result<(String, u64), S3Error> {
    let number = part.part_number.unwrap_or(0);
    let found = uploaded.binary_search_by_key(&number, |one| i32::from(one.number));
    let found = found.ok().map(|at| &uploaded[at]);
    let named = sums_of!(part);
    let named = named.get(algorithm.header());
    let sum = found.and_then(|found| {
        let sum = found.checksums.get(algorithm.header())?;
        let is_same = named.is_none_or(|named| named == sum);
        is_same.then(|| (sum.clone(), found.bytes))
    });
    sum.ok_or_else(|| {
        let message = format!(
            "Part {number} was not uploaded, or its checksum is another one than the upload's."
        );
        Refusal::bad("InvalidPart", message).into()
    })
}

/// All parts, in the order of their numbers: at most 10,000.
async fn uploaded(
    service: &memory::Service,
    input: &CompleteMultipartUploadInput,
    id: UploadId,
) -> Result<Vec<UploadedPart>, S3Error> {
    let mut all: Vec<UploadedPart> = Vec::new();
    loop {
        let after = all.last().map_or(0, |part| part.number);
        let page = service.parts(&input.bucket, &input.key, id, after, PAGE);
        let (_, mut page) = page.await.map_err(from_service)?;
        let is_last = page.len() < PAGE;
        all.append(&mut page);
        if is_last {
            return Ok(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use s3s::dto::ETag;

    use super::*;

    #[test]
    fn an_upload_has_its_id_from_its_text_and_no_other_text_has_one() {
        let upload = UploadId(0xabc);
        assert_eq!(id(&text(upload)).expect("an id"), upload);
        for other in [
            "",
            "abc",
            "+00000000000000000000000000000ab",
            &"g".repeat(32),
        ] {
            let error = id(other).expect_err(other);
            assert_eq!(error.code().as_str(), "NoSuchUpload", "{other}");
        }
    }

    #[test]
    fn part_numbers_are_from_one_to_ten_thousand() {
        assert_eq!(part_number(10_000).expect("the last"), 10_000);
        for number in [-1, 0, 10_001, 70_000] {
            assert!(part_number(number).is_err(), "{number}");
        }
    }

    #[test]
    fn a_completion_names_at_least_one_part_with_number_and_etag() {
        let part = CompletedPart {
            part_number: Some(1),
            e_tag: Some(ETag::Strong("abc".into())),
            ..CompletedPart::default()
        };
        assert_eq!(named(std::slice::from_ref(&part)).expect("one").len(), 1);
        let without = CompletedPart {
            e_tag: None,
            ..part
        };
        for parts in [&[][..], &[without]] {
            let error = named(parts).expect_err("malformed");
            assert_eq!(error.code().as_str(), "MalformedXML");
        }
    }
}
