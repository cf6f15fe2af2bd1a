//! The OpenAPI document, composed from `openapi/source.json`.
//!
//! Most operations share their parameters, refusals and schemas. The source names those
//! once, and [`document`] writes them out. Its short forms:
//!
//! | in the source | stands for |
//! | --- | --- |
//! | `operations.TAG.PATH."METHOD ID"` | the operation `ID` of that tag |
//! | `everywhere` | refusals of every operation, less the statuses in its `without` |
//! | `shared: [NAME]` of an operation | the responses of these names in the top level's `shared` |
//! | a string as a response | a problem document with this description |
//! | `{"lambda": TEXT}` as a response | an error as Lambda's API writes it |
//! | `same_as: METHOD` | the operation of the same path with that method, less what is given anew |
//! | a string as a parameter | the name of one in `parameters` or `components/parameters` |
//! | `{"path" or "query" or "header": NAME}` | `name` and `in` of a parameter; paths are required |
//! | `"KIND: TEXT"` as a schema | a schema of that type or component, with this description |
//! | `"required": "all"` | every property is required |
//! | `"json": SCHEMA`, or `"content": NAME` | a body of that one type |

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

static DOCUMENT: LazyLock<String> = LazyLock::new(|| compose(include_str!("openapi/source.json")));

pub(crate) fn document() -> &'static str {
    &DOCUMENT
}

fn compose(source: &str) -> String {
    let mut source: Map<String, Value> =
        serde_json::from_str(source).expect("the source is JSON: a test reads it");
    let mut take = |name: &str| source.remove(name).unwrap_or_default();
    let (everywhere, shared, parameters) = (take("everywhere"), take("shared"), take("parameters"));
    let (operations, mut components) = (take("operations"), take("components"));
    let composer = Composer {
        everywhere,
        shared,
        parameters,
    };
    let mut paths = Map::new();
    for (tag, below) in members(&operations) {
        for (path, methods) in members(below) {
            paths.insert(path.clone(), composer.path(tag, methods));
        }
    }
    schemas(&mut components);
    for (_, parameter) in members_mut(&mut components["parameters"]) {
        *parameter = full_parameter(parameter);
    }
    source.insert("paths".to_owned(), paths.into());
    source.insert("components".to_owned(), components);
    Value::from(source).to_string()
}

/// What operations refer to by name.
struct Composer {
    everywhere: Value,
    shared: Value,
    parameters: Value,
}

impl Composer {
    fn path(&self, tag: &str, methods: &Value) -> Value {
        let mut item = Map::new();
        for (key, operation) in members(methods) {
            if key == "parameters" {
                item.insert(key.clone(), self.parameters(operation));
                continue;
            }
            let (method, id) = key.split_once(' ').expect("a method and an id");
            let mut operation = operation.as_object().expect("an operation").clone();
            if let Some(model) = operation.remove("same_as") {
                let model = format!("{} ", model.as_str().expect("a method"));
                let like = members(methods).find(|(key, _)| key.starts_with(&model));
                operation = merged(like.expect("that method").1, operation);
            }
            let operation = self.operation(method, id, tag, operation);
            item.insert(method.to_owned(), operation);
        }
        item.into()
    }

    fn operation(
        &self,
        method: &str,
        id: &str,
        tag: &str,
        mut operation: Map<String, Value>,
    ) -> Value {
        let without = operation.remove("without").unwrap_or_default();
        let is_left_out = |status: &str| list(&without).any(|left| left == status);
        let mut responses: Map<String, Value> = Map::new();
        let everywhere = members(&self.everywhere).filter(|(status, _)| !is_left_out(status));
        responses.extend(everywhere.map(|(status, text)| (status.clone(), text.clone())));
        for name in list(&operation.remove("shared").unwrap_or_default()) {
            let response = &self.shared[name.as_str().expect("a name")];
            match response.as_str().and_then(|text| text.split_once(' ')) {
                Some((status, text)) => drop(responses.insert(status.to_owned(), text.into())),
                None => responses.extend(response.as_object().expect("it is there").clone()),
            }
        }
        let own = operation.remove("responses").unwrap_or_default();
        responses.extend(members(&own).map(|(status, own)| (status.clone(), own.clone())));
        for (status, response) in &mut responses {
            *response = full_response(status, response);
            // A response to HEAD has no body.
            if let (Some(response), "head") = (response.as_object_mut(), method) {
                response.remove("content");
            }
        }
        if let Some(parameters) = operation.get_mut("parameters") {
            *parameters = self.parameters(parameters);
        }
        if let Some(body) = operation.get_mut("requestBody") {
            full_content(body);
        }
        operation.insert("operationId".to_owned(), id.into());
        operation.insert("tags".to_owned(), json!([tag]));
        operation.insert("responses".to_owned(), responses.into());
        operation.into()
    }

    fn parameters(&self, parameters: &Value) -> Value {
        let full = list(parameters).map(|parameter| match parameter.as_str() {
            Some(name) => match name.strip_prefix('@') {
                Some(name) => full_parameter(&self.parameters[name]),
                None => reference("parameters", name),
            },
            None => full_parameter(parameter),
        });
        full.collect()
    }
}

/// `operation` over `model`. The responses are united; those of `operation` win.
fn merged(model: &Value, operation: Map<String, Value>) -> Map<String, Value> {
    let mut merged = model.as_object().expect("an operation").clone();
    for (key, value) in operation {
        match (merged.get_mut(&key), value) {
            (Some(Value::Object(old)), Value::Object(new)) => old.extend(new),
            (Some(Value::Array(old)), Value::Array(new)) if key == "shared" => old.extend(new),
            (_, value) => {
                merged.insert(key, value);
            }
        }
    }
    merged
}

fn full_response(status: &str, response: &Value) -> Value {
    if let Some(description) = response.as_str() {
        let mut problem = json!({ "description": description, "content": "Problem" });
        if matches!(status, "429" | "503") {
            problem["headers"] = json!({ "Retry-After": "RetryAfter" });
        }
        return full_response(status, &problem);
    }
    if let Some(description) = response.get("lambda") {
        let error = json!({ "type": "object", "properties": {
            "Type": { "type": "string" }, "Reason": { "type": "string" }, "Message": { "type": "string" }
        } });
        return json!({
            "description": description,
            "headers": { "X-Amzn-ErrorType": { "schema": { "type": "string" } } },
            "content": { "application/json": { "schema": error } },
        });
    }
    let mut response = response.clone();
    full_content(&mut response);
    for (_, header) in response
        .get_mut("headers")
        .into_iter()
        .flat_map(members_mut)
    {
        if let Some(name) = header.as_str() {
            *header = reference("headers", name);
        }
    }
    response
}

/// Writes out `json` and `content` of a response or a request's body.
fn full_content(body: &mut Value) {
    let Some(members) = body.as_object_mut() else {
        return;
    };
    let schema = members.remove("json").map(|schema| full_schema(&schema));
    let full = match (members.get("content").and_then(Value::as_str), schema) {
        (_, Some(schema)) => json!({ "application/json": { "schema": schema } }),
        (Some("json"), None) => json!({ "application/json": { "schema": {} } }),
        (Some("bytes"), None) => {
            json!({ "application/octet-stream": { "schema": { "type": "string", "format": "binary" } } })
        }
        (Some("Problem"), None) => {
            json!({ "application/problem+json": { "schema": reference("schemas", "Problem") } })
        }
        (Some(name), None) => {
            json!({ "application/json": { "schema": reference("schemas", name) } })
        }
        (None, None) => return schemas(body),
    };
    members.insert("content".to_owned(), full);
}

fn full_parameter(parameter: &Value) -> Value {
    let mut full = parameter.as_object().expect("a parameter").clone();
    for place in ["path", "query", "header"] {
        if let Some(name) = full.remove(place) {
            full.insert("name".to_owned(), name);
            full.insert("in".to_owned(), place.into());
            if place == "path" {
                full.insert("required".to_owned(), true.into());
            }
        }
    }
    if let Some(schema) = full.get_mut("schema") {
        *schema = full_schema(schema);
        let members = schema.as_object_mut();
        if let Some(description) = members.and_then(|schema| schema.remove("description")) {
            full.entry("description").or_insert(description);
        }
    }
    full.into()
}

fn full_schema(schema: &Value) -> Value {
    let Some(short) = schema.as_str() else {
        let mut schema = schema.clone();
        schemas(&mut schema);
        return schema;
    };
    let (kind, description) = match short.split_once(": ") {
        Some((kind, description)) => (kind, Some(description)),
        None => (short, None),
    };
    let mut full = match kind {
        "count" => json!({ "type": "integer", "minimum": 0 }),
        "integer" | "string" | "boolean" | "number" | "object" => json!({ "type": kind }),
        name => reference("schemas", name),
    };
    if let Some(description) = description {
        full["description"] = description.into();
    }
    full
}

/// Writes out the short schemas below `value`.
fn schemas(value: &mut Value) {
    match value {
        Value::Object(members) => {
            if let Some(required) = members.get("required")
                && required == "all"
            {
                let names = self::members(&members["properties"]).map(|(name, _)| name.clone());
                let names: Value = names.collect();
                members.insert("required".to_owned(), names);
            }
            for (key, value) in members {
                match (key.as_str(), &mut *value) {
                    ("properties", Value::Object(properties)) => {
                        for (_, property) in properties {
                            *property = full_schema(property);
                        }
                    }
                    ("items", _) => *value = full_schema(value),
                    _ => schemas(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(schemas),
        _ => {}
    }
}

fn reference(section: &str, name: &str) -> Value {
    json!({ "$ref": format!("#/components/{section}/{name}") })
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn members_mut(value: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    value.as_object_mut().into_iter().flatten()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("$ref").and_then(Value::as_str));
                members.values().for_each(|value| references(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_of_the_document_exists() {
        let document: Value = serde_json::from_str(document()).expect("it is JSON");
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 300, "{}", found.len());
        for reference in found {
            let target = document.pointer(reference.trim_start_matches('#'));
            assert!(target.is_some(), "{reference}");
        }
    }

    #[test]
    fn an_operation_has_its_own_responses_and_those_that_it_shares() {
        let document: Value = serde_json::from_str(document()).expect("it is JSON");
        let head = &document["paths"]["/v1/state/{key}"]["head"];
        assert_eq!(head["operationId"], "headState");
        assert!(head["responses"]["503"]["headers"]["Retry-After"]["$ref"].is_string());
        for (status, response) in members(&head["responses"]) {
            assert!(response["description"].is_string(), "{status}");
            assert!(response.get("content").is_none(), "{status}");
        }
        let get = &document["paths"]["/v1/state/{key}"]["get"];
        let problem = &get["responses"]["404"]["content"]["application/problem+json"];
        assert_eq!(problem["schema"]["$ref"], "#/components/schemas/Problem");
        assert!(
            document["paths"]["/health/live"]["get"]["responses"]
                .get("401")
                .is_none()
        );
    }
}
