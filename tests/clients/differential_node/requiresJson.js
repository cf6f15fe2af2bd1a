exports.handler = async () => require("./data").handler;
