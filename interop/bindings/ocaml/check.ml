(* Builds and runs a graph, its gradient, its copy, a SavedModel and an eager op through TensorFlow's C API, by ctypes.

   check LIBRARY MODEL ROWS FEATURES EXPECTED TOLERANCE: the signature of the SavedModel MODEL takes ROWS * 4 features
   and returns ROWS * 3 numbers. *)
open Ctypes

let library = Dl.dlopen ~filename:Sys.argv.(1) ~flags:[ Dl.RTLD_NOW ]
let foreign name typ = Foreign.foreign ~from:library name typ

(* Handles are opaque. *)
let h = ptr void

type output

let output : output structure typ = structure "TF_Output"
let output_op = field output "oper" h
let output_index = field output "index" int
let () = seal output

type buffer

let buffer : buffer structure typ = structure "TF_Buffer"
let buffer_data = field buffer "data" h
let buffer_length = field buffer "length" size_t
let _ = field buffer "data_deallocator" h
let () = seal buffer

let free_t = Foreign.funptr (h @-> size_t @-> h @-> returning void)
let version = foreign "TF_Version" (void @-> returning string)
let new_status = foreign "TF_NewStatus" (void @-> returning h)
let code = foreign "TF_GetCode" (h @-> returning int)
let message = foreign "TF_Message" (h @-> returning string)
let delete_status = foreign "TF_DeleteStatus" (h @-> returning void)
let new_tensor = foreign "TF_NewTensor" (int @-> ptr int64_t @-> int @-> h @-> size_t @-> free_t @-> h @-> returning h)
let tensor_data = foreign "TF_TensorData" (h @-> returning h)
let element_count = foreign "TF_TensorElementCount" (h @-> returning int64_t)
let delete_tensor = foreign "TF_DeleteTensor" (h @-> returning void)
let new_graph = foreign "TF_NewGraph" (void @-> returning h)
let delete_graph = foreign "TF_DeleteGraph" (h @-> returning void)
let new_operation = foreign "TF_NewOperation" (h @-> string @-> string @-> returning h)
let set_attr_type = foreign "TF_SetAttrType" (h @-> string @-> int @-> returning void)
let set_attr_tensor = foreign "TF_SetAttrTensor" (h @-> string @-> h @-> h @-> returning void)
let add_input = foreign "TF_AddInput" (h @-> output @-> returning void)
let finish_operation = foreign "TF_FinishOperation" (h @-> h @-> returning h)
let operation_by_name = foreign "TF_GraphOperationByName" (h @-> string @-> returning h)
let operation_name = foreign "TF_OperationName" (h @-> returning string)

let add_gradients =
  foreign "TF_AddGradients"
    (h @-> ptr output @-> int @-> ptr output @-> int @-> ptr output @-> h @-> ptr output @-> returning void)

let new_buffer = foreign "TF_NewBuffer" (void @-> returning (ptr buffer))
let delete_buffer = foreign "TF_DeleteBuffer" (ptr buffer @-> returning void)
let graph_to_graph_def = foreign "TF_GraphToGraphDef" (h @-> ptr buffer @-> h @-> returning void)
let new_import_options = foreign "TF_NewImportGraphDefOptions" (void @-> returning h)
let set_prefix = foreign "TF_ImportGraphDefOptionsSetPrefix" (h @-> string @-> returning void)
let delete_import_options = foreign "TF_DeleteImportGraphDefOptions" (h @-> returning void)
let import = foreign "TF_GraphImportGraphDef" (h @-> ptr buffer @-> h @-> h @-> returning void)
let new_session_options = foreign "TF_NewSessionOptions" (void @-> returning h)
let delete_session_options = foreign "TF_DeleteSessionOptions" (h @-> returning void)
let new_session = foreign "TF_NewSession" (h @-> h @-> h @-> returning h)

let load_saved_model =
  foreign "TF_LoadSessionFromSavedModel"
    (h @-> h @-> string @-> ptr string @-> int @-> h @-> ptr buffer @-> h @-> returning h)

let session_run =
  foreign "TF_SessionRun"
    (h @-> h @-> ptr output @-> ptr h @-> int @-> ptr output @-> ptr h @-> int @-> h @-> int @-> h @-> h
    @-> returning void)

let close_session = foreign "TF_CloseSession" (h @-> h @-> returning void)
let delete_session = foreign "TF_DeleteSession" (h @-> h @-> returning void)
let new_context_options = foreign "TFE_NewContextOptions" (void @-> returning h)
let delete_context_options = foreign "TFE_DeleteContextOptions" (h @-> returning void)
let new_context = foreign "TFE_NewContext" (h @-> h @-> returning h)
let delete_context = foreign "TFE_DeleteContext" (h @-> returning void)
let new_op = foreign "TFE_NewOp" (h @-> string @-> h @-> returning h)
let op_add_input = foreign "TFE_OpAddInput" (h @-> h @-> h @-> returning void)
let execute = foreign "TFE_Execute" (h @-> ptr h @-> ptr int @-> h @-> returning void)
let delete_op = foreign "TFE_DeleteOp" (h @-> returning void)
let new_handle = foreign "TFE_NewTensorHandle" (h @-> h @-> returning h)
let resolve = foreign "TFE_TensorHandleResolve" (h @-> h @-> returning h)
let delete_handle = foreign "TFE_DeleteTensorHandle" (h @-> returning void)

(* Calls. *)

let status = new_status ()
let check () = if code status <> 0 then failwith (Printf.sprintf "code %d: %s" (code status) (message status))

(* Memory that tensors refer to, until the library gives it back. *)
let lent : (nativeint, float CArray.t) Hashtbl.t = Hashtbl.create 16
let returned = ref 0

let give_back data _ _ =
  Hashtbl.remove lent (raw_address_of_ptr data);
  incr returned

let tensor dims values =
  let data = CArray.of_list float values in
  let start = to_voidp (CArray.start data) in
  Hashtbl.replace lent (raw_address_of_ptr start) data;
  let sizes = CArray.of_list int64_t (List.map Int64.of_int dims) in
  let size = Unsigned.Size_t.of_int (4 * List.length values) in
  new_tensor 1 (CArray.start sizes) (List.length dims) start size give_back null

let numbers tensor =
  let n = Int64.to_int (element_count tensor) in
  CArray.to_list (CArray.from_ptr (from_voidp float (tensor_data tensor)) n)

let at op index =
  let it = make output in
  setf it output_op op;
  setf it output_index index;
  it

let node graph kind name ?value inputs =
  let description = new_operation graph kind name in
  List.iter (add_input description) inputs;
  if inputs = [] then set_attr_type description "dtype" 1;
  Option.iter (fun value -> set_attr_tensor description "value" value status) value;
  let op = finish_operation description status in
  check ();
  at op 0

let find graph name =
  let op = operation_by_name graph name in
  if is_null op then failwith ("no node " ^ name);
  at op 0

let run session feeds fetch =
  let places = CArray.of_list output (List.map fst feeds) in
  let values = CArray.of_list h (List.map snd feeds) in
  let results = CArray.make h ~initial:null 1 in
  let n = List.length feeds in
  let fetches = CArray.of_list output [ fetch ] in
  session_run session null (CArray.start places) (CArray.start values) n (CArray.start fetches) (CArray.start results) 1
    null 0 null status;
  check ();
  let result = CArray.get results 0 in
  let found = numbers result in
  delete_tensor result;
  found

let on_session graph body =
  let options = new_session_options () in
  let session = new_session graph options status in
  check ();
  delete_session_options options;
  let result = body session in
  close_session session status;
  delete_session session status;
  check ();
  result

(* Checks. *)

let failed = ref false

let line name body =
  match body () with
  | () -> Printf.printf "ok     %s\n%!" name
  | exception error ->
    failed := true;
    Printf.printf "FAILED %s: %s\n%!" name (Printexc.to_string error)

let near ?(tolerance = 1e-6) got want =
  let text l = String.concat " " (List.map string_of_float l) in
  let is_near a b = Float.abs (a -. b) <= tolerance in
  if List.length got <> List.length want || not (List.for_all2 is_near got want) then
    failwith (Printf.sprintf "%s instead of %s" (text got) (text want))

let expect what got want = if got <> want then failwith (Printf.sprintf "%s: %s instead of %s" what got want)

let square_plus_two () =
  let graph = new_graph () in
  let x = node graph "Placeholder" "x" [] in
  let two = tensor [] [ 2. ] in
  let constant = node graph "Const" "two" ~value:two [] in
  delete_tensor two;
  let y = node graph "AddV2" "y" [ node graph "Mul" "square" [ x; x ]; constant ] in
  (graph, x, y)

let graph_and_session () =
  let graph, x, y = square_plus_two () in
  let fed = tensor [ 3 ] [ 1.; 2.; 3. ] in
  near (on_session graph (fun session -> run session [ (x, fed) ] y)) [ 3.; 6.; 11. ];
  delete_tensor fed;
  delete_graph graph

let gradient () =
  let graph, x, y = square_plus_two () in
  let dx = CArray.make output 1 in
  let list o = CArray.start (CArray.of_list output [ o ]) in
  add_gradients graph (list y) 1 (list x) 1 (from_voidp output null) status (CArray.start dx);
  check ();
  let fed = tensor [ 3 ] [ 1.; 2.; 3. ] in
  near (on_session graph (fun session -> run session [ (x, fed) ] (CArray.get dx 0))) [ 2.; 4.; 6. ];
  delete_tensor fed;
  delete_graph graph

let copy () =
  let graph, _, _ = square_plus_two () in
  let exported = new_buffer () in
  graph_to_graph_def graph exported status;
  check ();
  let other = new_graph () in
  let options = new_import_options () in
  set_prefix options "copy";
  import other exported options status;
  check ();
  delete_import_options options;
  delete_buffer exported;
  delete_graph graph;
  expect "name" (operation_name (getf (find other "copy/y") output_op)) "copy/y";
  let fed = tensor [] [ 5. ] in
  near (on_session other (fun session -> run session [ (find other "copy/x", fed) ] (find other "copy/y"))) [ 27. ];
  delete_tensor fed;
  delete_graph other

let list_of text = List.map float_of_string (String.split_on_char ',' text)

let saved_model () =
  let rows = int_of_string Sys.argv.(3) in
  let graph = new_graph () in
  let options = new_session_options () in
  let tags = CArray.of_list string [ "serve" ] in
  let meta = new_buffer () in
  let session = load_saved_model options null Sys.argv.(2) (CArray.start tags) 1 graph meta status in
  check ();
  if Unsigned.Size_t.to_int (getf !@meta buffer_length) = 0 then failwith "no MetaGraphDef";
  let fed = tensor [ rows; 4 ] (list_of Sys.argv.(4)) in
  let got = run session [ (find graph "serving_default_features", fed) ] (find graph "StatefulPartitionedCall_1") in
  near ~tolerance:(float_of_string Sys.argv.(6)) got (list_of Sys.argv.(5));
  delete_tensor fed;
  delete_buffer meta;
  close_session session status;
  delete_session session status;
  check ();
  delete_session_options options;
  delete_graph graph

let eager () =
  let options = new_context_options () in
  let context = new_context options status in
  check ();
  delete_context_options options;
  let value = tensor [ 2; 2 ] [ 1.; 2.; 3.; 4. ] in
  let handle = new_handle value status in
  delete_tensor value;
  let op = new_op context "MatMul" status in
  op_add_input op handle status;
  op_add_input op handle status;
  let results = CArray.make h ~initial:null 1 in
  let n = allocate int 1 in
  execute op (CArray.start results) n status;
  check ();
  let product = resolve (CArray.get results 0) status in
  near (numbers product) [ 7.; 10.; 15.; 22. ];
  delete_tensor product;
  delete_op op;
  List.iter delete_handle [ handle; CArray.get results 0 ];
  delete_context context

let contains text part =
  let n = String.length part in
  let rec from i = i + n <= String.length text && (String.sub text i n = part || from (i + 1)) in
  from 0

let errors () =
  let graph = new_graph () in
  let description = new_operation graph "NoSuchOp" "x" in
  if not (is_null (finish_operation description status)) then failwith "an unknown op is accepted";
  expect "code" (string_of_int (code status)) "3";
  if not (contains (message status) "Op type not registered 'NoSuchOp' in binary") then failwith (message status);
  delete_graph graph;
  let graph, x, y = square_plus_two () in
  (match on_session graph (fun session -> run session [] y) with
  | _ -> failwith "a placeholder without a value is accepted"
  | exception Failure text -> if not (contains text "code 3: You must feed a value for placeholder tensor 'x'") then failwith text);
  ignore x

let () =
  Printf.printf "libtensorflow %s, OCaml %s\n%!" (version ()) Sys.ocaml_version;
  line "graph and session" graph_and_session;
  line "gradient" gradient;
  line "export and import" copy;
  line "SavedModel" saved_model;
  line "eager" eager;
  line "errors" errors;
  line "memory is given back" (fun () ->
      Gc.full_major ();
      expect "tensors that live" (string_of_int (Hashtbl.length lent)) "0";
      if !returned < 6 then failwith (Printf.sprintf "%d deallocations" !returned));
  delete_status status;
  exit (if !failed then 1 else 0)
