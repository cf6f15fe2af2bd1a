console.log("at the import");
exports.handler = async () => console.log("in the handler");
