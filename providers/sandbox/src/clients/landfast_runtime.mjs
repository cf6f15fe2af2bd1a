// Runs a handler against the AWS Lambda Runtime API, with Node.js alone.
//
// Usage: landfast_runtime.mjs [FOLDER/]MODULE.PROPERTY[.PROPERTY...]
//
// It behaves as npm's aws-lambda-ric does: tests/clients/differential_node_test.py compares the two and lists where they
// differ. If the code has aws-lambda-ric, that runs instead, as in the cloud.
//
// The code may replace anything of its process: http.request, JSON.stringify, Promise, setImmediate, the methods of a stream.
// So the client takes its references before it loads the code, and speaks HTTP over a socket that owns its methods. Calls run
// without spreading, destructuring or iterating an array: the code may replace what those use.

import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const process = require("node:process");
const { existsSync, readFileSync, writeSync } = require("node:fs");
const { Socket } = require("node:net");
const path = require("node:path");
const { Writable } = require("node:stream");
const { pathToFileURL } = require("node:url");
const { format, types } = require("node:util");

const { basename, dirname, join, resolve: resolvePath } = path;
const { Buffer, Date, Error, Object, Promise, Reflect, Symbol, SyntaxError, TypeError, Uint8Array } = globalThis;
const { console, setImmediate } = globalThis;
const { byteLength, concat, from: bufferFrom, isBuffer } = Buffer;
const { assign, create, defineProperties, getOwnPropertyDescriptors, getPrototypeOf } = Object;
const { apply, deleteProperty, ownKeys, set } = Reflect;
const { exit, reallyExit } = process;
const { isNativeError } = types;
const { now } = Date;
const { parse, stringify } = JSON;
const { indexOf: indexIn, toString: textOf } = Buffer.prototype;
const { write: writeTo } = Writable.prototype;

const { AWS_LAMBDA_RUNTIME_API: api, LAMBDA_TASK_ROOT: root } = process.env;
const [host, port] = api.split(":");
const PREFIX = "/2018-06-01/runtime/";
// The longest error that the server keeps whole. Of a longer one the type and the beginning of the message are sent.
const ERROR_BYTES_MAX = 256 * 1024;
const MESSAGE_CHARACTERS_MAX = 32 * 1024;
const TYPE_CHARACTERS_MAX = 256;
const NO_TEXT =
  "callback called with Error argument, but there was a problem while retrieving one or more of its message, name, and stack";
const ONLY_RESPONSES = "Only response streaming is supported.";
const ALREADY_DONE =
  "Invocation has already been reported as done. Cannot call complete more than once per invocation.";
// Libraries for Lambda read these.
const REQUEST_ID = Symbol.for("aws.lambda.runtime.requestId");
const STREAMING = Symbol.for("aws.lambda.runtime.handler.streaming");
const HIGH_WATER_MARK = Symbol.for("aws.lambda.runtime.handler.streaming.highWaterMark");

// The part of the instance's life for which the server waits: its start, or an invocation. None between them.
let open = { failurePath: "init/error" };
// The answer on its way to the server.
let posting;
// The unfinished work, and its outcome if nothing is left that could finish it.
let going = { whenIdle: () => end("Uncaught Exception", fault("NodeJsExit", neverSettled("module")), 13) };
let isEnding = false;
let requestId;

// ---- The connection

let socket;
// The exchange that waits for the rest of its response.
let waiting;
// The methods of a socket and of its handle as they are before the code is loaded.
const methods = methodsOf(Socket.prototype);
let setBlocking;

function methodsOf(prototype) {
  if (prototype === Object.prototype) return {};
  const found = methodsOf(getPrototypeOf(prototype));
  const own = getOwnPropertyDescriptors(prototype);
  for (const name of ownKeys(own)) {
    if (name !== "constructor" && typeof own[name].value === "function") found[name] = own[name];
  }
  return found;
}

function connect() {
  const made = defineProperties(new Socket(), methods);
  made.on("data", receive);
  made.on("error", () => {});
  made.on("close", () => {
    if (socket !== made) return;
    socket = undefined;
    const lost = waiting;
    waiting = undefined;
    lost?.reject(new Error("the server closed the connection"));
  });
  made.connect({ host, port });
  made.setNoDelay(true);
  return made;
}

// Only an exchange keeps the process alive. The kernel has the whole request before this returns, so that it is sent even if
// the code then ends the process.
function exchange(method, name, body = "", fields = "") {
  return new Promise((resolve, reject) => {
    waiting = { chunks: [], bytes: 0, resolve, reject };
    // The code may have destroyed it.
    if (!socket || socket.destroyed) socket = connect();
    socket.ref();
    const head = `${method} ${PREFIX}${name} HTTP/1.1\r\nHost: ${api}\r\nContent-Length: ${byteLength(body)}\r\n${fields}\r\n`;
    writeWhole(typeof body === "string" ? head + body : concat([bufferFrom(head), body]));
  });
}

function writeWhole(request) {
  // While it connects, and after its end, it has no handle that takes bytes.
  const handle = socket.connecting ? undefined : socket._handle;
  if (handle) apply(setBlocking, handle, [true]);
  socket.write(request);
  if (handle) apply(setBlocking, handle, [false]);
}

// Takes a part of a response. The server always says how long a response is.
function receive(chunk) {
  if (!waiting) return;
  waiting.chunks[waiting.chunks.length] = chunk;
  waiting.bytes += chunk.length;
  if (!waiting.head) {
    const begun = concat(waiting.chunks);
    waiting.chunks = [begun];
    const length = apply(indexIn, begun, ["\r\n\r\n"]);
    if (length < 0) return;
    waiting.head = headOf(apply(textOf, begun, ["utf8", 0, length]));
    waiting.bodyAt = length + 4;
  }
  const { bodyAt, bytes, chunks, head, resolve } = waiting;
  if (bytes < bodyAt + head.length) return;
  waiting = undefined;
  socket.unref();
  resolve({ ...head, body: apply(textOf, concat(chunks), ["utf8", bodyAt, bodyAt + head.length]) });
}

function headOf(text) {
  const lines = text.split("\r\n");
  const headers = create(null);
  for (let at = 1; at < lines.length; at += 1) {
    const line = lines[at];
    const colon = line.indexOf(":");
    headers[line.slice(0, colon).toLowerCase()] = line.slice(colon + 1).trim();
  }
  return { status: lines[0].slice(9, 12), headers, length: Number(headers["content-length"]) };
}

// ---- Failures

// A failure with a name in Lambda. Logs show the properties of an error, so the name is on the prototype.
function fault(name, message) {
  class Fault extends Error {
    // The default constructor spreads its arguments.
    constructor(text) {
      super(text);
    }
  }
  Fault.prototype.name = `Runtime.${name}`;
  return new Fault(message);
}

function neverSettled(whose) {
  return `the ${whose}'s promise was never settled, and nothing is left that could settle it`;
}

function intoError(thrown) {
  return thrown instanceof Error ? thrown : new Error(thrown);
}

function isError(thrown) {
  const isText = (value) => typeof value === "string" && value !== "";
  return isNativeError(thrown) || (isText(thrown?.name) && isText(thrown.message) && isText(thrown.stack));
}

function failure(error) {
  // A header allows no such character.
  const plain = (text) => text?.replace(/\x7f/g, "%7F");
  try {
    if (!isError(error)) return { errorType: typeof error, errorMessage: error.toString(), trace: [] };
    return { errorType: plain(error.name), errorMessage: plain(error.message), trace: plain(error.stack).split("\n") };
  } catch {
    return { errorType: "handled", errorMessage: NO_TEXT };
  }
}

function failureBody(said) {
  const body = stringify(said);
  if (byteLength(body) <= ERROR_BYTES_MAX) return body;
  const errorType = cut(said.errorType, TYPE_CHARACTERS_MAX);
  return stringify({ errorType, errorMessage: cut(said.errorMessage, MESSAGE_CHARACTERS_MAX), trace: [] });
}

// The beginning of a text, never with half of a surrogate pair at its end.
function cut(text, charactersMax) {
  if (!(text?.length > charactersMax)) return text;
  return `${text.slice(0, charactersMax).replace(/[\ud800-\udbff]$/, "")}... (${text.length} characters)`;
}

function postFailure(mine, error) {
  if (open !== mine) return;
  const said = failure(error);
  open = undefined;
  const type = cut(said.errorType, TYPE_CHARACTERS_MAX)?.replace(/[^\x20-\x7e]/g, "?");
  const fields = type === undefined ? "" : `Lambda-Runtime-Function-Error-Type: ${type}\r\n`;
  posting = exchange("POST", mine.failurePath, failureBody(said), fields);
}

// Ends the process after an error that the handler did not catch. The caller gets the error.
async function end(what, error, status) {
  if (isEnding) return;
  isEnding = true;
  try {
    logError(what, error);
  } catch {
    // An error may have no text.
  }
  try {
    if (open) postFailure(open, error);
    await posting;
  } catch {
    // The server is gone.
  }
  leave(status);
}

function leave(status) {
  try {
    exit(status);
  } finally {
    // A listener of `exit` may throw, and the code may have replaced more than that.
    apply(reallyExit, process, [status]);
  }
}

// ---- The log

const LEVELS = ["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"];
const isJson = process.env.AWS_LAMBDA_LOG_FORMAT?.toUpperCase() === "JSON";

// The console writes as in Lambda: the time, the request, the level and the text, or a JSON object.
function patchConsole() {
  const least = LEVELS.indexOf(process.env.AWS_LAMBDA_LOG_LEVEL?.toUpperCase());
  for (const [index, level] of LEVELS.entries()) {
    const isWritten = index >= least || level === "FATAL";
    console[level.toLowerCase()] = (message, ...params) => {
      // The code may have replaced `write`, to collect its output.
      if (isWritten) process.stdout.write(line(level, message, params));
    };
  }
  console.log = console.info;
}

function line(level, message, params = []) {
  const timestamp = new Date().toISOString();
  if (isJson) return `${jsonLine({ timestamp, level, requestId }, message, params)}\n`;
  return `${timestamp}\t${requestId}\t${level}\t${formattedAll(message, params)}\n`;
}

function formattedAll(message, params) {
  const all = [message];
  for (let at = 0; at < params.length; at += 1) all[at + 1] = params[at];
  return apply(format, undefined, all);
}

function jsonLine(entry, message, params) {
  if (params.length > 0) {
    entry.message = formattedAll(message, params);
    const error = message instanceof Error ? message : params.find((param) => param instanceof Error);
    return stringify(error ? assign(entry, jsonError(error)) : entry);
  }
  entry.message = message;
  try {
    return stringify(entry, (_, value) => (value instanceof Error ? assign(jsonError(value), value) : value));
  } catch {
    entry.message = format(message);
    return stringify(entry);
  }
}

function jsonError({ constructor, message, stack }) {
  const stackTrace = typeof stack === "string" ? stack.split("\n") : stack;
  return { errorType: constructor?.name ?? "UnknownError", errorMessage: message, stackTrace };
}

function logError(what, thrown) {
  const error = intoError(thrown);
  write(isJson ? line("ERROR", error) : line("ERROR", what, [formatted(error)]));
}

// Writes to the log, also where the code has replaced `process.stdout.write`.
function write(text) {
  try {
    const { stdout } = process;
    if (stdout.writable) return apply(writeTo, stdout, [text]);
  } catch {
    // The code has replaced the stream or its methods.
  }
  try {
    writeSync(1, text);
  } catch {
    // The code has closed the output.
  }
}

function formatted(error) {
  const shown = (value) => {
    if (!(value instanceof Error)) return value;
    const { name: errorType, message: errorMessage, code, stack } = value;
    const all = assign({ errorType, errorMessage, code }, value);
    return typeof stack === "string" ? assign(all, { stack: stack.split("\n") }) : all;
  };
  try {
    return `\t${stringify(error, (_, value) => shown(value))}`;
  } catch {
    return `\t${stringify(failure(error))}`;
  }
}

// ---- The handler

// The handler of a name such as `lib/index.api.handler`: the module ends at the first dot of the last segment of the path.
async function load(name) {
  if (name.includes("..")) {
    const advice = "is not a valid handler name. Use absolute paths when specifying root directories in handler names.";
    throw fault("MalformedHandlerName", `'${name}' ${advice}`);
  }
  const last = basename(name);
  const folder = name.slice(0, name.indexOf(last));
  const dot = last.indexOf(".");
  if (dot < 0) throw fault("MalformedHandlerName", "Bad handler");
  const loaded = await loadModule(folder, last.slice(0, dot));
  const properties = last.slice(dot + 1).split(".");
  const found = (object) => properties.reduce((nested, key) => nested && nested[key], object);
  const handler = found(loaded) || found(loaded?.default);
  if (!handler) throw fault("HandlerNotFound", `${name} is undefined or not exported`);
  if (typeof handler !== "function") throw fault("HandlerNotFound", `${name} is not a function`);
  if (handler[STREAMING] && handler[STREAMING] !== "response") throw fault("MalformedStreamingHandler", ONLY_RESPONSES);
  return handler;
}

async function loadModule(folder, module) {
  try {
    return await importModule(folder, module);
  } catch (error) {
    if (error instanceof SyntaxError) throw fault("UserCodeSyntaxError", error);
    if (error?.code === "MODULE_NOT_FOUND") throw fault("ImportModuleError", error);
    throw error;
  }
}

async function importModule(folder, module) {
  const file = resolvePath(root, folder, module);
  if (existsSync(file)) return require(file);
  if (existsSync(`${file}.js`)) return isOfModules(dirname(file)) ? import(pathToFileURL(`${file}.js`)) : require(`${file}.js`);
  if (existsSync(`${file}.mjs`)) return import(pathToFileURL(`${file}.mjs`));
  if (existsSync(`${file}.cjs`)) return require(`${file}.cjs`);
  return require(require.resolve(module, { paths: [root, folder] }));
}

// Whether the nearest package.json makes the .js files of a folder ES modules.
function isOfModules(folder) {
  if (folder.endsWith("/node_modules")) return false;
  const file = join(folder, "package.json");
  if (!existsSync(file)) return folder !== "/" && isOfModules(dirname(folder));
  try {
    return parse(readFileSync(file, "utf8")).type === "module";
  } catch (error) {
    write(line("WARN", `${file} cannot be read, it will be ignored for ES module detection purposes.`, [error]));
    return false;
  }
}

// The global of Lambda for handlers that stream their response.
function provideStreaming() {
  if (["1", "true"].includes(process.env.AWS_LAMBDA_NODEJS_NO_GLOBAL_AWSLAMBDA)) return;
  globalThis.awslambda = {
    streamifyResponse(handler, options) {
      handler[STREAMING] = "response";
      if (typeof options?.highWaterMark === "number") handler[HIGH_WATER_MARK] = options.highWaterMark;
      return handler;
    },
    HttpResponseStream: class HttpResponseStream {
      // The status and the headers come before the body, and eight zero bytes between them.
      static from(stream, prelude) {
        stream.setContentType("application/vnd.awslambda.http-integration-response");
        const text = stringify(prelude);
        stream._onBeforeFirstWrite = (write) => {
          write(text);
          write(new Uint8Array(8));
        };
        return stream;
      }
    },
  };
}

// ---- Invocations

// Adds the data of the server and of the environment to the context of an invocation.
function complement(context, headers) {
  const trace = headers["lambda-runtime-trace-id"];
  try {
    if (trace) set(process.env, "_X_AMZN_TRACE_ID", trace);
    else deleteProperty(process.env, "_X_AMZN_TRACE_ID");
  } catch {
    // The code may have replaced process.env.
  }
  const { env } = process;
  const deadline = headers["lambda-runtime-deadline-ms"];
  return assign(context, {
    functionVersion: env?.AWS_LAMBDA_FUNCTION_VERSION,
    functionName: env?.AWS_LAMBDA_FUNCTION_NAME,
    memoryLimitInMB: env?.AWS_LAMBDA_FUNCTION_MEMORY_SIZE,
    logGroupName: env?.AWS_LAMBDA_LOG_GROUP_NAME,
    logStreamName: env?.AWS_LAMBDA_LOG_STREAM_NAME,
    clientContext: headerJson(headers["lambda-runtime-client-context"], "ClientContext"),
    identity: headerJson(headers["lambda-runtime-cognito-identity"], "CognitoIdentity"),
    invokedFunctionArn: headers["lambda-runtime-invoked-function-arn"],
    awsRequestId: requestId,
    tenantId: headers["lambda-runtime-aws-tenant-id"],
    getRemainingTimeInMillis: () => deadline - now(),
  });
}

function headerJson(text, name) {
  if (text === undefined) return undefined;
  try {
    return parse(text);
  } catch (error) {
    throw new Error(`Cannot parse ${name} as json: ${error}`);
  }
}

function answer(mine, body) {
  if (open !== mine) return;
  open = undefined;
  posting = exchange("POST", `invocation/${mine.id}/response`, body);
}

function isPromise(value) {
  return Boolean(value) && typeof value.then === "function";
}

// A result as JSON.
function serialized(result) {
  let text;
  try {
    text = stringify(result === undefined ? null : result);
  } catch {
    throw new Error("Unable to stringify response body");
  }
  // A function or a symbol.
  if (text === undefined) throw new TypeError("Wrong arguments");
  return text;
}

// The ways in which a handler gives its result. The first one that does not throw counts. `isAnswered` is called once the
// answer is on its way.
function waysToAnswer(mine, own, isAnswered) {
  let isFinished = false;
  let isCompleted = false;
  let waitsForEmptyLoop = true;
  const complete = (result) => {
    if (isCompleted) return write(line("ERROR", ALREADY_DONE));
    isCompleted = true;
    answer(mine, serialized(result));
    isAnswered();
  };
  const done = (error, result) => {
    own.whenIdle = () => {};
    if ((error ?? null) === null) return complete(result);
    logError("Invoke Error", error);
    postFailure(mine, error);
    isAnswered();
  };
  const callback = (error, result) => {
    if ((error ?? null) !== null || !waitsForEmptyLoop) done(error, result);
    else own.whenIdle = () => complete(result);
  };
  const first = (take) => (one, other) => {
    if (isFinished) return;
    take(one, other);
    isFinished = true;
  };
  const context = {
    get callbackWaitsForEmptyEventLoop() {
      return waitsForEmptyLoop;
    },
    set callbackWaitsForEmptyEventLoop(value) {
      waitsForEmptyLoop = value;
    },
    succeed: first((result) => done(null, result)),
    fail: first((error) => done(error ?? "handled")),
    done: first(done),
  };
  const { succeed, fail } = context;
  return { complete, context, succeed, fail, callback: first(callback), isFinished: () => isFinished };
}

// Runs a handler that returns its result or calls back. Resolves once its answer is on its way.
function run(runtime, mine, body, headers) {
  return new Promise((resolve) => {
    const own = {};
    const { callback, complete, context, fail, isFinished, succeed } = waysToAnswer(mine, own, resolve);
    own.whenIdle = () => complete(null);
    going = own;
    // An error may have no text, which is an error itself.
    const failed = (error) => {
      try {
        fail(error);
      } catch (another) {
        fail(another);
      }
    };
    const succeeded = (result) => {
      try {
        succeed(result);
      } catch (error) {
        failed(error);
      }
    };
    const settle = async (promise) => {
      try {
        succeeded(await promise);
      } catch (error) {
        failed(error);
      }
    };
    try {
      const result = runtime.handler(parse(body), complement(context, headers), callback);
      if (isPromise(result)) {
        if (!isFinished()) own.whenIdle = () => failed(fault("NodeJsExit", neverSettled("handler")));
        settle(result);
      } else if (runtime.handler.length < 3 && result !== undefined && !isFinished()) {
        // Work that is left may still call back, and then that counts.
        own.whenIdle = () => succeeded(result);
      }
    } catch (error) {
      failed(error);
    }
  });
}

// A stream that keeps its content in `chunks`.
function responseStream(highWaterMark, chunks) {
  const stream = new Writable({
    highWaterMark,
    decodeStrings: false,
    write(chunk, encoding, taken) {
      chunks[chunks.length] = typeof chunk === "string" ? bufferFrom(chunk, encoding) : chunk;
      taken();
    },
  });
  let isBegun = false;
  stream.setContentType = () => {
    if (isBegun) throw fault("InvalidStreamingOperation", "Cannot set content-type, too late.");
  };
  stream.write = (chunk, encoding, taken) => {
    const isPlain = typeof chunk === "string" || isBuffer(chunk) || chunk?.constructor === Uint8Array;
    if (!isBegun) stream._onBeforeFirstWrite?.((begun) => apply(writeTo, stream, [begun]));
    isBegun = true;
    return apply(writeTo, stream, [isPlain ? chunk : stringify(chunk), encoding, taken]);
  };
  return stream;
}

// Runs a handler that writes to a stream. Its content is sent as a whole, once the handler and the stream have ended.
function runStreaming(runtime, mine, body, headers) {
  return new Promise((resolve) => {
    const chunks = [];
    const stream = responseStream(runtime.handler[HIGH_WATER_MARK], chunks);
    const failed = (error) => {
      if (open !== mine) return;
      logError("Invoke Error", error);
      // In the cloud a response that has ended is sent already.
      if (stream.writableEnded) answer(mine, concat(chunks));
      else postFailure(mine, error);
      resolve();
    };
    const unfinished = () => failed("Response stream is not finished.");
    const written = new Promise((finished) => stream.on("finish", finished));
    stream.on("error", failed);
    stream.on("close", () => stream.writableFinished || unfinished());
    going = { whenIdle: unfinished };
    const settle = async (returned) => {
      try {
        if ((await returned) !== undefined) write(line("WARN", "Streaming handlers ignore return values."));
        await written;
        answer(mine, concat(chunks));
        resolve();
      } catch (error) {
        failed(error);
      }
    };
    try {
      const context = complement({ callbackWaitsForEmptyEventLoop: true }, headers);
      const returned = runtime.handler(parse(body), stream, context);
      if (isPromise(returned)) settle(returned);
      else failed("Streaming does not support non-async handlers.");
    } catch (error) {
      failed(error);
    }
  });
}

// Traces show the class and the name of the property.
class Runtime {
  constructor(handler) {
    this.handler = handler;
  }
}

async function serve(runtime) {
  const take = runtime.handler[STREAMING] ? runStreaming : run;
  // A rejection that the import left unhandled is still a failure of the start.
  await new Promise((resolve) => setImmediate(resolve));
  open = going = undefined;
  for (;;) {
    const { status, headers, body } = await exchange("GET", "invocation/next");
    if (status !== "200") return;
    requestId = globalThis[REQUEST_ID] = headers["lambda-runtime-aws-request-id"];
    const mine = { id: requestId, failurePath: `invocation/${requestId}/error` };
    open = mine;
    await take(runtime, mine, body, headers);
    going = undefined;
    await posting;
  }
}

// Not awaited at the top level: with an idle loop, Node.js would end a program that still waits there.
async function main(name) {
  // A pipe would take what exceeds its buffer later: after the invocation, or never if the process exits.
  for (const stream of [process.stdout, process.stderr]) stream._handle?.setBlocking?.(true);
  patchConsole();
  provideStreaming();
  process.on("beforeExit", () => {
    const ending = going;
    going = undefined;
    if (ending) setImmediate(ending.whenIdle);
  });
  process.on("uncaughtException", (error) => end("Uncaught Exception", error, 129));
  process.on("unhandledRejection", (reason, promise) => {
    const error = assign(fault("UnhandledPromiseRejection", reason), { reason, promise });
    end("Unhandled Promise Rejection", error, 128);
  });
  // A socket that connects adds listeners, in ways that the code may replace.
  await new Promise((resolve) => {
    socket = connect();
    socket.on("connect", resolve);
  });
  socket.unref();
  ({ setBlocking } = socket._handle);
  let handler;
  try {
    handler = await load(name);
  } catch (error) {
    return end("Uncaught Exception", error, 129);
  }
  try {
    await serve(new Runtime(handler));
  } finally {
    // The end of the connection ends the instance.
    leave(0);
  }
}

const name = process.argv[2];
process.env.AWS_EXECUTION_ENV ??= `AWS_Lambda_nodejs${process.versions.node.split(".")[0]}.x`;
// Since version 3 it is in dist.
const ric = ["dist", "lib"]
  .map((folder) => join(root, "node_modules/aws-lambda-ric", folder, "index.mjs"))
  .find((file) => existsSync(file));
if (process.env.LANDFAST_RUNTIME_CLIENT !== "landfast" && ric) {
  const { run: runRic } = await import(pathToFileURL(ric));
  await runRic(root, name);
} else {
  main(name);
}
