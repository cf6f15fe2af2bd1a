//! The forms that a manifest may have its parts in.
//!
//! What reads it takes a list for a table, member by member, and a table of one empty member for a name: `triggers = [[60]]` would be a
//! timer, as nothing describes it, and a release that adds a member would read another thing. So whoever deploys a manifest is held to
//! the forms that are described; one that is deployed is read as it always was.

use toml::{Table, Value};

/// Errors: which part of the functions in `text` is to be of another form.
pub(super) fn check(text: &str) -> Result<(), String> {
    let manifest: Table = toml::from_str(text).map_err(|error| error.to_string())?;
    let functions = manifest.get("functions").and_then(Value::as_table);
    for (name, function) in functions.into_iter().flatten() {
        let said = |why: &str| format!("functions.{name}{why}");
        let function = function
            .as_table()
            .ok_or_else(|| said(" is to be a table, as [functions.NAME] begins one"))?;
        if !function.get("runtime").is_none_or(Value::is_str) {
            return Err(said(": runtime is to be a string, as \"python3\""));
        }
        let triggers = function
            .get("triggers")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        if !triggers.into_iter().all(Value::is_table) {
            return Err(said(": a trigger is to be a table, as { every_s = 60 }"));
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
    fn a_manifest_in_forms_that_nothing_describes_is_refused_to_who_deploys_it_alone() {
        for (text, said) in [
            (
                format!("{FUNCTION}triggers = [[60]]"),
                "functions.f: a trigger is to be a table",
            ),
            (
                format!("{FUNCTION}triggers = [{{ every_s = 60 }}, [\"q\", 3]]"),
                "functions.f: a trigger",
            ),
            (
                FUNCTION.replace("\"python3\"", "{ python3 = {} }"),
                "functions.f: runtime is to be a string",
            ),
            (
                "[functions]\nf = [\"python3\", \"c\", \"a.f\"]".to_owned(),
                "functions.f is to be a table",
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
