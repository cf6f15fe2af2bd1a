//! The documented forms of a manifest's parts.
//!
//! The parser also accepts a list for a table, member by member, and a table with one empty member
//! for a name. It would read `triggers = [[60]]` as a timer, and a release that adds a member would
//! read something else. A new deployment must therefore use the documented forms. A stored manifest
//! is read as before.

use toml::{Table, Value};

/// Errors: the part of the functions in `text` that must have another form.
pub(super) fn check(text: &str) -> Result<(), String> {
    let manifest: Table = toml::from_str(text).map_err(|error| error.to_string())?;
    let functions = manifest.get("functions").and_then(Value::as_table);
    for (name, function) in functions.into_iter().flatten() {
        let said = |why: &str| format!("functions.{name}{why}");
        let function = function
            .as_table()
            .ok_or_else(|| said(" must be a table, as [functions.NAME] begins one"))?;
        if !function.get("runtime").is_none_or(Value::is_str) {
            return Err(said(": runtime must be a string, as \"python3\""));
        }
        let triggers = function
            .get("triggers")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        if !triggers.into_iter().all(Value::is_table) {
            return Err(said(": a trigger must be a table, as { every_s = 60 }"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;

    const FUNCTION: &str =
        "[functions.f]\nruntime = \"python3\"\ncode = \"c\"\nhandler = \"a.f\"\n";

    #[test]
    fn undocumented_forms_are_refused_in_new_deployments_alone() {
        for (text, said) in [
            (
                format!("{FUNCTION}triggers = [[60]]"),
                "functions.f: a trigger must be a table",
            ),
            (
                format!("{FUNCTION}triggers = [{{ every_s = 60 }}, [\"q\", 3]]"),
                "functions.f: a trigger",
            ),
            (
                FUNCTION.replace("\"python3\"", "{ python3 = {} }"),
                "functions.f: runtime must be a string",
            ),
            (
                "[functions]\nf = [\"python3\", \"c\", \"a.f\"]".to_owned(),
                "functions.f must be a table",
            ),
        ] {
            let why = check(&text).expect_err(said);
            assert!(why.starts_with(said), "{why}");
        }
        for text in [
            FUNCTION.to_owned(),
            format!("{FUNCTION}triggers = [{{ every_s = 60 }}]"),
        ] {
            check(&text).expect("as described");
        }
        Manifest::parse(&format!("{FUNCTION}triggers = [[60]]"))
            .expect("one that is deployed is read");
    }
}
