//! Lambda's description of functions, and the refusal of its other calls.

use futures_util::FutureExt as _;
use serde_json::json;

use crate::{
    code, document,
    engine::Engine,
    functions::{manifest, service},
};

#[tokio::test]
async fn functions_are_listed_page_by_page() {
    let engine = Engine::open().await;
    let service = service(
        &engine,
        Box::new(|_, event| std::future::ready(Ok(Ok(event))).boxed()),
    )
    .await;
    let names: Vec<_> = (0..60).map(|number| format!("f{number:02}")).collect();
    let functions: Vec<_> = names.iter().map(|name| (&**name, "echo", "")).collect();
    service
        .deploy("many", manifest(&functions))
        .await
        .expect("they are deployed");
    let server = engine.serve_functions("127.0.0.1:0", None, service).await;
    for (query, first, count, next) in [
        ("", 0, 50, json!("f49")),
        ("?Marker=f49", 50, 10, json!(null)),
        ("?MaxItems=1000", 0, 50, json!("f49")),
        (
            "?MaxItems=3&Marker=f01&FunctionVersion=ALL",
            2,
            3,
            json!("f04"),
        ),
        ("?MaxItems=60&Marker=f09", 10, 50, json!(null)),
        ("?Marker=z", 60, 0, json!(null)),
    ] {
        for path in ["/2015-03-31/functions", "/2015-03-31/functions/"] {
            let page = document(&server.get(&format!("{path}{query}")).await);
            let listed: Vec<_> = page["Functions"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|one| &one["FunctionName"])
                .collect();
            assert_eq!(
                listed,
                names[first..first + count].iter().collect::<Vec<_>>(),
                "{query}"
            );
            assert_eq!(page["NextMarker"], next, "{query}");
        }
    }
    for wrong in ["?MaxItems=0", "?MaxItems=-1", "?MaxItems=x"] {
        let refused = server.get(&format!("/2015-03-31/functions{wrong}")).await;
        assert_eq!(code(&refused), 400, "{wrong}");
        assert!(
            refused.contains("x-amzn-errortype: InvalidParameterValueException\r\n"),
            "{refused}"
        );
    }
}

#[tokio::test]
async fn calls_of_lambdas_api_that_are_not_offered_are_refused_in_its_format() {
    let engine = Engine::open().await;
    let server = engine.serve().await;
    for (method, path) in [
        ("POST", "/2015-03-31/functions"),
        ("DELETE", "/2015-03-31/functions/f"),
        ("PUT", "/2015-03-31/functions/f/code"),
        ("GET", "/2015-03-31/functions/f/invocations"),
        ("GET", "/2021-10-31/functions/f/url"),
    ] {
        let refused = server.send(method, path, "", "").await;
        assert_eq!(code(&refused), 501, "{refused}");
        assert!(
            refused.contains("x-amzn-errortype: NotImplementedException\r\n"),
            "{refused}"
        );
        assert!(refused.contains("x-amzn-requestid: "), "{refused}");
        assert!(
            document(&refused)["Message"]
                .as_str()
                .expect("text")
                .contains("ListFunctions"),
            "{refused}"
        );
    }
}

#[tokio::test]
async fn an_invocation_with_values_that_lambda_does_not_know_is_refused() {
    let engine = Engine::open().await;
    let service = service(
        &engine,
        Box::new(|_, event| std::future::ready(Ok(Ok(event))).boxed()),
    )
    .await;
    service
        .deploy("one", manifest(&[("f", "echo", "")]))
        .await
        .expect("it is deployed");
    let server = engine.serve_functions("127.0.0.1:0", None, service).await;
    let path = "/2015-03-31/functions/f/invocations";
    for (query, header, status) in [
        ("", "X-Amz-Log-Type: Tail\r\n", 200),
        ("", "X-Amz-Log-Type: None\r\n", 200),
        ("", "X-Amz-Log-Type: Bogus\r\n", 400),
        ("", "X-Amz-Invocation-Type: Bogus\r\n", 400),
        ("?Qualifier=%24LATEST", "", 200),
        ("?Qualifier=bad%20qual%21", "", 400),
        ("?Qualifier=7", "", 404),
    ] {
        let answer = server
            .send("POST", &format!("{path}{query}"), header, "{}")
            .await;
        assert_eq!(code(&answer), status, "{query} {header}: {answer}");
        let is_invalid = answer.contains("x-amzn-errortype: InvalidParameterValueException\r\n");
        assert_eq!(is_invalid, status == 400, "{answer}");
    }
}

#[tokio::test]
async fn each_answer_of_lambdas_api_has_an_id_of_its_own() {
    let engine = Engine::open().await;
    let service = service(
        &engine,
        Box::new(|_, event| std::future::ready(Ok(Ok(event))).boxed()),
    )
    .await;
    let server = engine.serve_functions("127.0.0.1:0", None, service).await;
    let mut ids = Vec::new();
    for path in [
        "/2015-03-31/functions",
        "/2015-03-31/functions/nobody",
        "/2018-10-31/layers",
    ] {
        for _ in 0..2 {
            let answer = server.get(path).await;
            let id = answer
                .split("x-amzn-requestid: ")
                .nth(1)
                .expect("an id")
                .split("\r\n")
                .next();
            ids.push(id.expect("a line").to_owned());
        }
    }
    assert!(ids.iter().all(|id| id.len() == 36), "{ids:?}");
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 6);
}
