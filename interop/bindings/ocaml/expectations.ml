(* What tests of tensorflow-ocaml expect, without ppx_expect: `start` redirects standard output to a file, `expect`
   compares what was printed since the last call, blank lines and indentation aside. *)

let file, printed = Filename.open_temp_file "expectations" ".txt"
let terminal = Unix.dup Unix.stdout
let seen = ref 0
let checked = ref 0
let failed = ref 0

let start () = Unix.dup2 (Unix.descr_of_out_channel printed) Unix.stdout

let lines text =
  let trimmed = List.map String.trim (String.split_on_char '\n' text) in
  List.filter (fun line -> line <> "") trimmed

let expect want =
  Format.print_flush ();
  flush stdout;
  let input = open_in_bin file in
  let n = in_channel_length input in
  seek_in input !seen;
  let got = really_input_string input (n - !seen) in
  close_in input;
  seen := n;
  incr checked;
  if lines got <> lines want then begin
    incr failed;
    Printf.eprintf "expectation %d: got\n%sinstead of\n%s\n%!" !checked got want
  end

let finish () =
  flush stdout;
  Unix.dup2 terminal Unix.stdout;
  Sys.remove file;
  Printf.printf "%d of %d expectations\n%!" (!checked - !failed) !checked;
  if !failed > 0 || !checked = 0 then exit 1
