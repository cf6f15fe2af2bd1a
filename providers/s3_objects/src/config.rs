//! The address of a bucket: `s3://BUCKET[/PREFIX][?endpoint=URL&region=NAME]`.

use std::fmt;

use http::Uri;
use percent_encoding::percent_decode_str;

/// The region of a store that has none.
const REGION_DEFAULT: &str = "us-east-1";

/// The place of the objects. It holds no keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The bucket, which exists.
    pub bucket: String,
    /// The folder in the bucket; empty: the objects are at its top.
    pub prefix: String,
    /// The address of the store. None: that of AWS in the region.
    pub endpoint: Option<String>,
    /// The region. None: that of the environment, or `us-east-1`.
    pub region: Option<String>,
}

/// An address that cannot be used. It never shows a part of the address that may be a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

fn refused<T>(why: &str) -> Result<T, ConfigError> {
    Err(ConfigError(why.to_owned()))
}

impl Config {
    /// Parses an address. Errors: another form, keys in it, or an unknown parameter.
    pub fn from_url(url: &str) -> Result<Self, ConfigError> {
        let Some(rest) = url.strip_prefix("s3://") else {
            return refused("give s3://BUCKET[/PREFIX][?endpoint=URL&region=NAME]");
        };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        if place.contains('@') || place.contains('%') || place.contains('#') {
            return refused(
                "give the bucket and the prefix as they are; keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            );
        }
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if bucket.len() < 3 || !bucket.bytes().all(is_name) {
            return refused("a bucket has at least 3 letters, digits, dots and hyphens");
        }
        let mut config = Self {
            bucket: bucket.to_owned(),
            prefix: prefix.trim_matches('/').to_owned(),
            endpoint: None,
            region: None,
        };
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = percent_decode_str(value).decode_utf8_lossy().into_owned();
            match name {
                "endpoint" => config.endpoint = Some(endpoint(&value)?),
                "region" if !value.is_empty() => config.region = Some(value),
                _ => return refused("the parameters are endpoint=URL and region=NAME"),
            }
        }
        Ok(config)
    }
}

fn endpoint(url: &str) -> Result<String, ConfigError> {
    let is_right = url.parse::<Uri>().is_ok_and(|uri| {
        let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
        let is_whole = uri.host().is_some_and(|host| !host.is_empty());
        is_web && is_whole && !url.contains('@') && matches!(uri.path(), "" | "/")
    });
    if !is_right || url.contains('?') {
        return refused("endpoint: give http://HOST:PORT or https://HOST[:PORT], without keys");
    }
    Ok(url.trim_end_matches('/').to_owned())
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.bucket)?;
        if !self.prefix.is_empty() {
            write!(f, "/{}", self.prefix)?;
        }
        let at = |endpoint| write!(f, " at {endpoint}");
        self.endpoint.as_ref().map_or(Ok(()), at)
    }
}

/// The keys of a client of S3. Their `Debug` shows none.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    pub(crate) access_key: String,
    pub(crate) secret_key: String,
    /// Of temporary keys.
    pub(crate) session_token: Option<String>,
    /// The region that the environment names.
    pub(crate) region: String,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys")
    }
}

impl Keys {
    /// The keys as AWS's tools name them, and the region: `AWS_ACCESS_KEY_ID`,
    /// `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION` or `AWS_DEFAULT_REGION`.
    ///
    /// Errors: one of the first two is missing.
    pub fn from_environment(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let given = |name| variable(name).filter(|value| !value.is_empty());
        let (Some(access_key), Some(secret_key)) =
            (given("AWS_ACCESS_KEY_ID"), given("AWS_SECRET_ACCESS_KEY"))
        else {
            return refused(
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to the keys of the bucket",
            );
        };
        let region = given("AWS_REGION").or_else(|| given("AWS_DEFAULT_REGION"));
        Ok(Self {
            access_key,
            secret_key,
            session_token: given("AWS_SESSION_TOKEN"),
            region: region.unwrap_or_else(|| REGION_DEFAULT.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_bucket_a_prefix_and_parameters() {
        let url = "s3://photos/a/b/?endpoint=http%3A%2F%2F127.0.0.1:9000/&region=eu-west-1";
        let config = Config::from_url(url).expect("it is right");
        assert_eq!(
            config.to_string(),
            "s3://photos/a/b at http://127.0.0.1:9000"
        );
        assert_eq!(config.region.as_deref(), Some("eu-west-1"));
        let plain = Config::from_url("s3://photos").expect("it is right");
        assert_eq!((plain.prefix.as_str(), plain.endpoint), ("", None));
    }

    #[test]
    fn wrong_addresses_are_refused_without_showing_keys() {
        for url in [
            "s3://",
            "s3://b",
            "s3:///photos",
            "s3://AKIA:secret@photos",
            "s3://photos?endpoint=ftp://h",
            "s3://photos?endpoint=http://AKIA:secret@h",
            "s3://photos?endpoint=http://h/path",
            "s3://photos?region=",
            "s3://photos?secret=secret",
        ] {
            let refused = Config::from_url(url).expect_err(url).to_string();
            assert!(!refused.contains("secret@") && !refused.contains("AKIA"));
        }
    }

    #[test]
    fn both_keys_are_needed_and_are_never_shown() {
        let only = |wanted: &'static [&str]| {
            move |name: &str| wanted.contains(&name).then(|| "value".to_owned())
        };
        Keys::from_environment(only(&["AWS_ACCESS_KEY_ID"])).expect_err("one is missing");
        let both = Keys::from_environment(only(&["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]));
        let keys = both.expect("both are there");
        assert_eq!(format!("{keys:?}"), "Keys");
        assert_eq!(keys.region, REGION_DEFAULT);
    }
}
