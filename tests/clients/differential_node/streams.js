// Handlers that stream their response. `handler` runs the export that the event names.
const { Readable, Transform } = require("stream");
const { pipeline } = require("stream/promises");

exports.text = async (event, stream) => {
  stream.write("one ");
  stream.write(Buffer.from("two "));
  stream.write(new Uint8Array([51, 10]));
  stream.end();
};
exports.ends = async (event, stream) => { stream.write("begun, "); stream.end("ended"); };
exports.onlyEnds = async (event, stream) => stream.end("only ended") && undefined;
exports.empty = async (event, stream) => { stream.end(); };
exports.objects = async (event, stream) => { stream.write({ a: 1 }); stream.write([2]); stream.end(); };
exports.encodings = async (event, stream) => { stream.write("68656c6c6f", "hex"); stream.write("ä"); stream.write("ä", "latin1"); stream.end(); };
exports.pipes = async (event, stream) => { await pipeline(Readable.from(["piped ", "to ", "the end"]), stream); };
exports.transforms = async (event, stream) => {
  const upper = new Transform({ transform: (chunk, encoding, done) => done(null, chunk.toString().toUpperCase()) });
  await pipeline(Readable.from(["piped"]), upper, stream);
};
exports.later = async (event, stream) => { stream.write("now, "); setTimeout(() => { stream.write("later"); stream.end(); }, 5); };
exports.prelude = async (event, stream) => {
  stream = awslambda.HttpResponseStream.from(stream, { statusCode: 201, headers: { "Content-Type": "text/html", "X-Own": "yes" }, cookies: ["a=1"] });
  stream.write("<p>");
  stream.write("body</p>");
  stream.end();
};
exports.preludeAlone = async (event, stream) => { awslambda.HttpResponseStream.from(stream, { statusCode: 204 }).end(); };
exports.contentType = async (event, stream) => { stream.setContentType("text/plain"); stream.write("typed"); stream.end(); };
exports.tooLate = async (event, stream) => { stream.write("begun"); stream.setContentType("text/plain"); };
exports.context = async (event, stream, context) => {
  const remaining = context.getRemainingTimeInMillis() > 0;
  stream.write({ event, keys: Object.keys(context), waits: context.callbackWaitsForEmptyEventLoop, remaining });
  stream.end();
};
exports.large = async (event, stream) => { for (let n = 0; n < 64; n++) stream.write("x".repeat(16 * 1024)); stream.end(); };
exports.callbacks = async (event, stream) => { await new Promise((resolve) => stream.write("taken", resolve)); await new Promise((resolve) => { stream.on("finish", resolve); stream.end(); }); };
exports.properties = async (event, stream) => {
  const before = [stream.writable, stream.writableEnded, stream.writableFinished, stream.destroyed, stream.writableObjectMode];
  stream.write(before);
  stream.end();
};
exports.returns = async (event, stream) => { stream.write("written"); stream.end(); return "returned"; };
exports.throwsFirst = async () => { throw new RangeError("before the first write"); };
exports.throwsLate = async (event, stream) => { stream.write("begun"); throw new RangeError("after a write"); };
exports.throwsAfterEnd = async (event, stream) => { stream.write("whole"); stream.end(); throw new RangeError("after the end"); };
exports.throwsString = async () => { throw "a string"; };
exports.sync = (event, stream) => { stream.write("synchronous"); stream.end(); };
exports.syncThrows = () => { throw new RangeError("synchronous"); };
exports.unfinished = async (event, stream) => { stream.write("begun"); };
exports.destroyed = async (event, stream) => { stream.write("begun"); stream.destroy(); };
exports.logs = async (event, stream) => { console.log("while streaming"); stream.end(); };

exports.handler = awslambda.streamifyResponse((event, stream, context) => exports[event.case](event.event, stream, context));
exports.alone = awslambda.streamifyResponse(async (event, stream) => { stream.write("in small parts"); stream.end(); }, { highWaterMark: 16 });
exports.marked = Object.assign(async () => {}, { [Symbol.for("aws.lambda.runtime.handler.streaming")]: "request" });
exports.isFunction = async () => [typeof awslambda.streamifyResponse(() => {}), exports.text.length];
