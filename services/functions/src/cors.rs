//! The CORS settings of an application, `[cors]` in its manifest, with the meaning that they have
//! in API Gateway's HTTP APIs.
//!
//! With them the gateway answers preflight requests itself and replaces the CORS headers of the
//! application's functions. Without them each function answers CORS by itself. This module parses
//! and checks the settings; the front end applies them.

use serde::Deserialize;

/// The most entries of each list. All of them become one header of a response.
const ENTRIES_MAX: usize = 100;
const ENTRY_BYTES_MAX: usize = 256;
/// The longest time in API Gateway for which a browser may keep a preflight response.
const MAX_AGE_S_MAX: u32 = 86_400;
/// The entry for anything.
const ANY: &str = "*";

/// Whether an entry of a list can have an effect.
type IsGood<'a> = &'a dyn Fn(&str) -> bool;

/// The table `[cors]` of a manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cors {
    /// The origins whose pages may read responses: `https://shop.example`, `*` for any, or
    /// `https://*` and `http://*` for any of one scheme.
    pub allow_origins: Vec<String>,
    /// The methods that such pages may send, beyond those that browsers always allow.
    #[serde(default)]
    pub allow_methods: Vec<String>,
    /// The headers that such pages may send, beyond those that browsers always allow.
    #[serde(default)]
    pub allow_headers: Vec<String>,
    /// The headers of a response that such pages may read, beyond those that browsers always show.
    #[serde(default)]
    pub expose_headers: Vec<String>,
    /// For how many seconds a browser may keep the response to a preflight request.
    pub max_age_s: Option<u32>,
    /// Whether such pages may send cookies.
    #[serde(default)]
    pub allow_credentials: bool,
}

impl Cors {
    /// The value of `Access-Control-Allow-Origin` for a request of `origin`. None: its pages may
    /// not read the response.
    pub fn allowed_origin<'a>(&self, origin: &'a str) -> Option<&'a str> {
        if self.allow_origins.iter().any(|entry| entry == ANY) {
            return Some(ANY);
        }
        let allows = |entry: &String| match entry.strip_suffix(ANY) {
            Some(scheme) => origin.starts_with(scheme),
            None => entry == origin,
        };
        self.allow_origins.iter().any(allows).then_some(origin)
    }

    /// Errors: a setting without effect or beyond a limit. `methods` are those that routes take.
    pub(crate) fn check(&self, methods: &[&str]) -> Result<(), String> {
        if self.allow_origins.is_empty() {
            return Err("cors: allow_origins must name at least one origin, or \"*\"".to_owned());
        }
        let is_method = |text: &str| methods.contains(&text);
        let origin = "an origin such as \"https://shop.example\", in lower case and without a path, or \"*\"";
        let method = format!("one of {}, or \"*\"", methods.join(", "));
        let header = "the name of a header, or \"*\"";
        let lists: [(&str, &[String], IsGood<'_>, &str); 4] = [
            ("allow_origins", &self.allow_origins, &is_origin, origin),
            ("allow_methods", &self.allow_methods, &is_method, &method),
            (
                "allow_headers",
                &self.allow_headers,
                &is_header_name,
                header,
            ),
            (
                "expose_headers",
                &self.expose_headers,
                &is_header_name,
                header,
            ),
        ];
        for (field, entries, is_good, wanted) in lists {
            check_entries(field, entries, is_good, wanted)?;
            if self.allow_credentials && entries.iter().any(|entry| entry == ANY) {
                return Err(format!(
                    "cors: {field} must list its entries with allow_credentials = true, because browsers then do not accept \"*\""
                ));
            }
        }
        match self.max_age_s {
            Some(seconds) if seconds > MAX_AGE_S_MAX => Err(format!(
                "cors: max_age_s = {seconds} must be 0 to {MAX_AGE_S_MAX}"
            )),
            _ => Ok(()),
        }
    }
}

fn check_entries(
    field: &str,
    entries: &[String],
    is_good: IsGood<'_>,
    wanted: &str,
) -> Result<(), String> {
    if entries.len() > ENTRIES_MAX {
        return Err(format!("cors: {field} has {ENTRIES_MAX} entries at most"));
    }
    let is_wrong = |entry: &&String| {
        entry.len() > ENTRY_BYTES_MAX || !(entry.as_str() == ANY || is_good(entry))
    };
    match entries.iter().find(is_wrong) {
        Some(wrong) => Err(format!("cors: {field}: {wrong:.300?} must be {wanted}")),
        None => Ok(()),
    }
}

/// Whether `text` is an origin as browsers send it, or all origins of a scheme.
fn is_origin(text: &str) -> bool {
    let Some((scheme, host)) = text.split_once("://") else {
        return false;
    };
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._:[]+".contains(&byte);
    let is_scheme = matches!(scheme, "http" | "https");
    if host == ANY {
        return is_scheme;
    }
    !scheme.is_empty()
        && !host.is_empty()
        && [scheme, host].iter().all(|part| part.bytes().all(is_plain))
}

fn is_header_name(text: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_token)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::manifest::Manifest;

    const FUNCTION: &str =
        "[functions.f]\nruntime = \"executable\"\ncode = \"c\"\nhandler = \"f\"\n[cors]\n";

    fn parsed(cors: &str) -> Result<Arc<Cors>, String> {
        let manifest = Manifest::parse(&format!("{FUNCTION}{cors}"))?;
        Ok(manifest.cors.expect("there is a table"))
    }

    #[test]
    fn an_origin_is_allowed_by_its_name_its_scheme_or_any() {
        for (entries, origin, allowed) in [
            (r#"["*"]"#, "https://a.example", Some("*")),
            (r#"["*"]"#, "null", Some("*")),
            (
                r#"["https://a.example"]"#,
                "https://a.example",
                Some("https://a.example"),
            ),
            (r#"["https://a.example"]"#, "https://a.example:8443", None),
            (r#"["https://a.example"]"#, "http://a.example", None),
            (r#"["https://a.example"]"#, "https://a.example.evil", None),
            (
                r#"["https://*"]"#,
                "https://b.example",
                Some("https://b.example"),
            ),
            (r#"["https://*"]"#, "http://b.example", None),
            (r#"["https://*"]"#, "null", None),
            (
                r#"["http://x", "http://localhost:3000"]"#,
                "http://localhost:3000",
                Some("http://localhost:3000"),
            ),
        ] {
            let cors = parsed(&format!("allow_origins = {entries}")).expect("settings");
            assert_eq!(cors.allowed_origin(origin), allowed, "{entries} {origin}");
        }
    }

    #[test]
    fn wrong_settings_are_refused_with_a_hint() {
        for (wrong, said) in [
            ("", "allow_origins"),
            ("allow_origins = []", "at least one origin"),
            ("allow_origins = [\"shop.example\"]", "https://shop.example"),
            (
                "allow_origins = [\"https://shop.example/\"]",
                "without a path",
            ),
            (
                "allow_origins = [\"https://Shop.example\"]",
                "in lower case",
            ),
            ("allow_origins = [\"https://*.example\"]", "such as"),
            ("allow_origins = [\"ftp://*\"]", "such as"),
            (
                "allow_origins = [\"*\"]\nallow_methods = [\"get\"]",
                "one of DELETE",
            ),
            (
                "allow_origins = [\"*\"]\nallow_headers = [\"a b\"]",
                "name of a header",
            ),
            (
                "allow_origins = [\"*\"]\nexpose_headers = [\"\"]",
                "name of a header",
            ),
            ("allow_origins = [\"*\"]\nmax_age_s = 86401", "0 to 86400"),
            (
                "allow_origins = [\"*\"]\nallow_credentials = true",
                "allow_origins must list",
            ),
            (
                "allow_origins = [\"http://a\"]\nallow_headers = [\"*\"]\nallow_credentials = true",
                "allow_headers must list",
            ),
            (
                "allow_origins = [\"*\"]\nallow_origin = []",
                "unknown field",
            ),
        ] {
            let refused = parsed(wrong).expect_err(wrong);
            assert!(refused.contains(said), "{wrong}: {refused}");
        }
        let in_a_list = Manifest::parse(&format!(
            "cors = [[\"*\"]]\n{}",
            FUNCTION.trim_end_matches("[cors]\n")
        ));
        in_a_list.expect_err("settings are a table");
        let many = format!("allow_origins = [{}]", "\"http://a\",".repeat(101));
        assert!(parsed(&many).expect_err("too many").contains("100 entries"));
    }
}
